package download

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/cli/console"
	"patchbay/fault"
	"patchbay/node/files"
)

// partial ends the names of files that are not complete yet.
const partial = ".part"

// Fetch fetches a file as Probe has offered it. grown is called with the bytes that are there so far. The file appears
// under its name complete or not at all, and replaces none. What has come of it when a transfer is cut lies beside, and
// the next Fetch goes on from there if the server still has the same version.
func (c *Fetcher) Fetch(ctx context.Context, f *File, offer Offer, grown func(int64)) error {
	if err := f.Check(); err != nil {
		return err
	}
	dir, err := f.open()
	if err != nil {
		return err
	}
	defer console.CloseQuietly(dir)
	if _, err := dir.Lstat(f.Name); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s is there already", filepath.Join(f.Folder, f.Name)), err)
	}
	p, err := f.resume(dir, offer)
	if err != nil {
		return err
	}
	defer console.CloseQuietly(p.file)
	if err := c.transfer(ctx, f, offer, p, grown); err != nil {
		if p.size == 0 {
			err = errors.Join(err, dir.Remove(p.name))
		}
		if fault.IsDiskFull(err) {
			return fmt.Errorf("the disk is full after %s; make room and run it again, which goes on from there: %w",
				console.Size(float64(p.size)), err)
		}
		return err
	}
	if sum := hex.EncodeToString(p.sum.Sum(nil)); offer.SHA256 != "" && sum != offer.SHA256 {
		return errors.Join(fmt.Errorf("it has the SHA256 %s and not %s; it was removed", sum, offer.SHA256),
			dir.Remove(p.name))
	}
	if err := errors.Join(p.file.Sync(), dir.Rename(p.name, f.Name)); err != nil {
		return err
	}
	return files.SyncFolder(filepath.Join(f.Root, f.Folder))
}

// open opens the folder of the file, which it makes if need be. A link is refused: it may lead anywhere.
func (f *File) open() (*os.Root, error) {
	root, err := os.OpenRoot(f.Root)
	if err != nil {
		return nil, err
	}
	defer console.CloseQuietly(root)
	if err := root.Mkdir(f.Folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	info, err := root.Lstat(f.Folder)
	switch {
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, fmt.Errorf("%s is a link, and files are fetched into folders only; name the models folder that it "+
			"leads to with --models", filepath.Join(f.Root, f.Folder))
	case !info.IsDir():
		return nil, fmt.Errorf("%s is no folder", filepath.Join(f.Root, f.Folder))
	}
	return root.OpenRoot(f.Folder)
}

// part is a file that is not complete yet.
type part struct {
	name string
	file *os.File
	size int64
	sum  interface {
		io.Writer
		Sum([]byte) []byte
		Reset()
	}
}

// resume opens what there is of the version of the file that a server offers, or begins it. Parts of other versions are
// removed.
func (f *File) resume(dir *os.Root, offer Offer) (*part, error) {
	version := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%d\n%s", f.URL, offer.Tag, offer.Size, offer.SHA256))
	p := &part{name: fmt.Sprintf(".%s.%x%s", f.Name, version[:8], partial), sum: sha256.New()}
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := e.Name()
		if name == p.name && !e.Type().IsRegular() {
			return nil, fmt.Errorf("%s is no file", filepath.Join(f.Root, f.Folder, name))
		}
		if rest, ok := strings.CutPrefix(name, "."+f.Name+"."); ok && name != p.name && len(rest) == 16+len(partial) &&
			strings.HasSuffix(rest, partial) {
			if err := dir.Remove(name); err != nil {
				return nil, err
			}
		}
	}
	if p.file, err = dir.OpenFile(p.name, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	err = unix.Flock(int(p.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errors.New("another patchbay pull is fetching it")
	}
	if err == nil {
		p.size, err = io.Copy(p.sum, p.file)
	}
	if err == nil && (offer.Tag == "" || offer.Size >= 0 && p.size > offer.Size) {
		err = p.restart()
	}
	if err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	return p, nil
}

// restart drops what there is.
func (p *part) restart() error {
	p.sum.Reset()
	p.size = 0
	_, err := p.file.Seek(0, io.SeekStart)
	return errors.Join(err, p.file.Truncate(0))
}

// transfer gets what is missing of a file.
func (c *Fetcher) transfer(ctx context.Context, f *File, offer Offer, p *part, grown func(int64)) error {
	if grown(p.size); p.size == offer.Size && offer.Size > 0 {
		return nil // it was cut just before its name
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL, nil)
	if err != nil {
		return err
	}
	wanted := []int{http.StatusOK}
	if p.size > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", p.size))
		req.Header.Set("If-Range", offer.Tag)
		wanted = append(wanted, http.StatusPartialContent)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return shortened(err)
	}
	defer console.CloseQuietly(resp.Body)
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return errors.Join(errors.New("the server has less than was fetched before, which was removed; run it again"),
			p.restart())
	}
	if err := statusError(resp, wanted...); err != nil {
		return err
	}
	if resp.StatusCode == http.StatusPartialContent {
		if !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", p.size)) {
			return fmt.Errorf("the server sends %q, asked for what follows byte %d", resp.Header.Get("Content-Range"), p.size)
		}
	} else if err := p.restart(); err != nil { // it cannot begin in the middle, or has another version
		return err
	}
	size := offer.Size
	if n := total(resp); n >= 0 && size >= 0 && n != size {
		return fmt.Errorf("the file has %d bytes, and the server said %d before; run it again", n, size)
	}
	// A part need not repeat its tag: If-Range has compared it.
	if now := tag(resp.Header); now != offer.Tag && (now != "" || resp.StatusCode == http.StatusOK) {
		return errors.New("the file has changed since the server was asked; run it again")
	}
	if err := f.room(size - p.size); err != nil {
		return err
	}
	quiet := time.AfterFunc(silentFor, func() { stop(fmt.Errorf("the server was silent for %s", silentFor)) })
	defer quiet.Stop()
	buf := make([]byte, 1<<20)
	for {
		n, err := resp.Body.Read(buf)
		quiet.Reset(silentFor)
		if size >= 0 && p.size+int64(n) > size {
			return errors.Join(fmt.Errorf("the server sends more than the %d bytes that it said", size), p.restart())
		}
		if _, err := p.file.Write(buf[:n]); err != nil {
			return err
		}
		_, _ = p.sum.Write(buf[:n]) // never fails
		p.size += int64(n)
		grown(p.size)
		switch {
		case errors.Is(err, io.EOF) && (size < 0 || p.size == size):
			return nil
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("cut off after %d of %d bytes; run it again, which goes on from there: %w", p.size, size,
				shortened(err))
		}
	}
}

// room returns an error if a file system has less than n bytes free.
func (f *File) room(n int64) error {
	var st unix.Statfs_t
	dir := filepath.Join(f.Root, f.Folder)
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if free := st.Bavail * uint64(st.Bsize); n > 0 && uint64(n) > free {
		return fmt.Errorf("%s has %s free, and %s are missing", dir, console.Size(float64(free)), console.Size(float64(n)))
	}
	return nil
}
