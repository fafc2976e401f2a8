package datafile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/fault"
)

// Copies are bytes that were made of checkpoints to be read again and again: blocks as a device has packed them. Those
// who want the same bytes share them. They are in memory, or in files of a folder that later processes find again. A
// nil Copies shares nothing. It is safe for concurrent use.
type Copies struct {
	dir   string
	build string
	spare func(n int64) bool
	warn  func(error)

	mu      sync.Mutex
	held    map[string]*copied
	keeping int
}

type copied struct {
	users int
	made  sync.Mutex // held while the bytes are being made
	ready bool
	span  Span
}

// NewCopies returns copies in files of the folder dir, which is made when the first one is written, or in memory if it
// is empty. build names the program: others may pack otherwise, and their files are not read. spare reports whether n
// bytes of memory may be taken; nil: any number. warn is told why a copy is in memory although there is a folder; nil:
// nobody.
func NewCopies(dir, build string, spare func(n int64) bool, warn func(error)) *Copies {
	if spare == nil {
		spare = func(int64) bool { return true }
	}
	if warn == nil {
		warn = func(error) {}
	}
	return &Copies{dir: dir, build: build, spare: spare, warn: warn, held: map[string]*copied{}}
}

// OnDisk reports whether copies are in files.
func (c *Copies) OnDisk() bool { return c != nil && c.dir != "" }

// Take returns the n bytes called name for one more user, who must Release them. If they are not there, fill makes
// them; others who want them wait meanwhile. The name must say all that the bytes depend on but the contents of the
// files that they are made of. Bytes that no files are behind are in memory. Reading the result may panic with the
// error of Changed. It returns an error with code out_of_memory if memory is needed and may not be taken, and those of
// fill.
func (c *Copies) Take(name string, n int, files []*File, fill func(dst []byte) error) (Span, error) {
	if c == nil {
		dst := make([]byte, n)
		return Of(dst), fill(dst)
	}
	c.mu.Lock()
	e := c.held[name]
	if e == nil {
		e = &copied{}
		c.held[name] = e
	}
	e.users++
	c.mu.Unlock()
	e.made.Lock()
	defer e.made.Unlock()
	if e.ready {
		return e.span, nil
	}
	span, err := c.make(name, n, files, fill)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.release(name, e)
		return Span{}, err
	}
	e.span, e.ready = span, true
	return span, nil
}

// Release ends one use of Take. The last one frees the memory or closes the file, which stays.
func (c *Copies) Release(name string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release(name, c.held[name])
}

// Keep says whether bytes without users stay for those who are about to take them.
func (c *Copies) Keep(yes bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if yes {
		c.keeping++
		return
	}
	if c.keeping--; c.keeping == 0 {
		for name, e := range c.held {
			if e.users == 0 {
				c.drop(name, e)
			}
		}
	}
}

// release ends one use. The caller must hold c.mu.
func (c *Copies) release(name string, e *copied) {
	if e.users--; e.users == 0 && (c.keeping == 0 || !e.ready) {
		c.drop(name, e)
	}
}

func (c *Copies) drop(name string, e *copied) {
	if e.span.file != nil {
		_ = e.span.file.Close() // it was only read
	}
	delete(c.held, name)
}

// make returns new bytes.
func (c *Copies) make(name string, n int, files []*File, fill func(dst []byte) error) (Span, error) {
	var path, version string
	if c.dir != "" && len(files) > 0 {
		path, version = c.place(name, files)
		if span, ok := existing(path, n); ok {
			return span, nil
		}
	}
	if !c.spare(int64(n)) {
		return Span{}, fault.Named(fault.OutOfMemory, "model",
			"blocks that come from host memory: %d MB more are not free there (--memory)", n>>20)
	}
	dst := make([]byte, n)
	if err := fill(dst); err != nil || path == "" {
		return Of(dst), err
	}
	if err := write(path, version, dst); err != nil {
		c.warn(fmt.Errorf("packed weights stay in memory: %w", err))
		return Of(dst), nil
	}
	span, ok := existing(path, n)
	if !ok {
		c.warn(fmt.Errorf("packed weights stay in memory: %s is not what was written", path))
		return Of(dst), nil
	}
	return span, nil
}

// place returns the path of the file with a name's bytes, and the beginning of its base name, which all have that were
// made of the same contents of the files. Everything that is made of these paths is in one folder.
func (c *Copies) place(name string, files []*File) (path, version string) {
	sorted := slices.SortedFunc(slices.Values(files), func(a, b *File) int { return cmp.Compare(a.path, b.path) })
	paths, contents := "", c.build
	for _, f := range sorted {
		at, err := filepath.Abs(f.path)
		if err != nil {
			at = f.path
		}
		paths += at + "\x00"
		contents += fmt.Sprintf("\x00%d %d %x", f.size, f.changed.UnixNano(), f.header.sum)
	}
	hash := func(of string, bytes int) string {
		sum := sha256.Sum256([]byte(of))
		return hex.EncodeToString(sum[:bytes])
	}
	version = hash(contents, 8) + "-"
	folder := filepath.Base(sorted[0].path) + "-" + hash(paths, 8)
	return filepath.Join(c.dir, folder, version+hash(name, 16)), version
}

// existing opens a file of n bytes.
func existing(path string, n int) (Span, bool) {
	f, err := Open(path)
	if err != nil {
		return Span{}, false
	}
	if f.size != int64(n) {
		_ = f.Close()
		return Span{}, false
	}
	return f.All(), true
}

// write writes a file so that it is whole or not there, also after a power failure, and removes those of other contents
// of the same checkpoint and what killed processes have left.
func write(path, version string, b []byte) (err error) {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	old, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range old {
		info, err := e.Info()
		abandoned := err == nil && strings.HasSuffix(e.Name(), ".tmp") && time.Since(info.ModTime()) > time.Hour
		if abandoned || !strings.HasPrefix(e.Name(), version) {
			_ = os.Remove(filepath.Join(folder, e.Name())) // another process may have done so
		}
	}
	tmp, err := os.CreateTemp(folder, version+"*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	err = cmp.Or(err, tmp.Sync())
	err = cmp.Or(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
