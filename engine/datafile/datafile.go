// Package datafile reads checkpoints: the header first, then ranges of the data when they are needed. It knows no
// format: safetensors, gguf and torchfile parse the contents.
//
// Files are read, not mapped. A read of a mapped page ends the process if the file has been cut meanwhile or the disk
// fails (SIGBUS), and in C code nothing can be done about it. Here it is the error of Changed.
package datafile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"patchbay/fault"
)

// File is an open file. Its methods may be called from several goroutines. The zero value holds nothing.
type File struct {
	path    string
	fd      reader // nil: nothing is open
	size    int64
	changed time.Time
	header  header
}

// reader is what File needs of an *os.File.
type reader interface {
	io.ReaderAt
	io.Closer
	Stat() (os.FileInfo, error)
}

// Changed returns the error, with code file_changed, for a file that was fine when it was opened, but was changed or
// could not be read afterwards. The same request may succeed later.
func Changed(path string, err error) *fault.Error {
	return fault.Wrap(fault.FileChanged, "", fmt.Errorf("read checkpoint %s: %w", path, err))
}

// Catch turns the panic of a Span that cannot be read into an error. Use it deferred; other panics go on.
func Catch(err *error) {
	v := recover()
	if v == nil {
		return
	}
	e, ok := v.(*fault.Error)
	if !ok || e.Code != fault.FileChanged {
		panic(v)
	}
	*err = e
}

// Open opens the file at path and reads nothing. Errors name the path.
func Open(path string) (*File, error) {
	fd, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err) // the os error names the path
	}
	info, err := fd.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("open checkpoint: %w", err)
	case info.IsDir():
		err = fmt.Errorf("open checkpoint %s: is a folder, not a file", path)
	}
	if err != nil {
		_ = fd.Close()
		return nil, err
	}
	return &File{path: path, fd: fd, size: info.Size(), changed: info.ModTime()}, nil
}

// Size returns the length of the file in bytes when it was opened.
func (f *File) Size() int64 { return f.size }

// Unchanged returns the error of Changed if the file was written to since it was opened: what was read may be a mixture
// of two files.
func (f *File) Unchanged() error {
	info, err := f.fd.Stat()
	if err == nil && (info.Size() != f.size || !info.ModTime().Equal(f.changed)) {
		err = errors.New("the file was changed while it was read")
	}
	if err != nil {
		return Changed(f.path, err)
	}
	return nil
}

// HeaderUnchanged returns the error of Changed if what was read of the file to parse it has other bytes now: another
// file was written over it, also where its size and time are as before.
func (f *File) HeaderUnchanged() (err error) {
	defer Catch(&err)
	sum, piece := sha256.New(), make([]byte, 64<<10)
	for _, r := range f.header.ranges {
		for at := r.lo; at < r.hi; {
			b := piece[:min(int64(len(piece)), r.hi-at)]
			f.read(b, at)
			sum.Write(b)
			at += int64(len(b))
		}
	}
	if !bytes.Equal(sum.Sum(nil), f.header.sum) {
		return Changed(f.path, errors.New("its header was changed while it was read"))
	}
	return nil
}

// header is the ranges of a file that were read to parse it, in that order, with the SHA-256 of their bytes.
type header struct {
	reading hash.Hash // nil: the file is not being parsed
	ranges  []extent
	sum     []byte
}

// extent is the bytes [lo, hi) of a file.
type extent struct{ lo, hi int64 }

// add notes what was read at an offset, if the file is being parsed.
func (h *header) add(b []byte, at int64) {
	if h.reading == nil {
		return
	}
	h.reading.Write(b)
	end := at + int64(len(b))
	if n := len(h.ranges); n > 0 && h.ranges[n-1].hi == at {
		h.ranges[n-1].hi = end
		return
	}
	h.ranges = append(h.ranges, extent{at, end})
}

// Close closes the file. A second Close does nothing.
func (f *File) Close() error {
	if f.fd == nil {
		return nil
	}
	if err := f.fd.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close checkpoint: %w", err)
	}
	return nil
}

// read fills dst with the bytes from offset on. It panics with the error of Changed if it cannot.
func (f *File) read(dst []byte, offset int64) {
	n, err := f.fd.ReadAt(dst, offset)
	if n == len(dst) {
		f.header.add(dst, offset)
		return
	}
	if errors.Is(err, io.EOF) {
		end := offset + int64(n)
		if info, unknown := f.fd.Stat(); unknown == nil {
			end = min(end, info.Size()) // where nothing is left of the range, it ended before
		}
		err = fmt.Errorf("it was cut while it was read: it had %d bytes and now ends at byte %d", f.size, end)
	} else {
		err = fmt.Errorf("at byte %d: %w", offset+int64(n), err)
	}
	panic(Changed(f.path, err))
}

// Span is a range of bytes of a file, or of memory. It may be read until the file is closed. The methods that read
// panic with the error of Changed if the file cannot be read (see Catch).
type Span struct {
	mem  []byte
	file *File // nil: mem has the bytes
	at   int64
	n    int
}

// Of returns the bytes of b, which must not change.
func Of(b []byte) Span { return Span{mem: b, n: len(b)} }

// All returns all bytes of the file.
func (f *File) All() Span { return Span{file: f, n: int(f.size)} }

// Len returns the number of bytes.
func (s Span) Len() int { return s.n }

// File returns the file that the bytes are in; nil: they are in memory.
func (s Span) File() *File { return s.file }

// Slice returns bytes [lo, hi) without reading them.
func (s Span) Slice(lo, hi int) Span {
	if lo < 0 || hi < lo || hi > s.n {
		panic(fmt.Sprintf("bytes [%d, %d) of %d", lo, hi, s.n))
	}
	s.at, s.n = s.at+int64(lo), hi-lo
	if s.file == nil {
		s.mem = s.mem[lo:hi:hi]
	}
	return s
}

// Read fills dst with the bytes from byte at on.
func (s Span) Read(dst []byte, at int) {
	part := s.Slice(at, at+len(dst))
	if s.file == nil {
		copy(dst, part.mem)
		return
	}
	s.file.read(dst, part.at)
}

// Bytes returns all bytes: those of memory themselves, or new memory.
func (s Span) Bytes() []byte {
	var fresh []byte
	return s.View(&fresh)
}

// View is Bytes with scratch memory to reuse.
func (s Span) View(scratch *[]byte) []byte {
	if s.file == nil {
		return s.mem
	}
	if cap(*scratch) < s.n {
		*scratch = make([]byte, s.n)
	}
	dst := (*scratch)[:s.n]
	s.file.read(dst, s.at)
	return dst
}

func (s Span) ReadAt(dst []byte, at int64) (n int, err error) {
	defer Catch(&err)
	if at < 0 || at > int64(s.n) {
		return 0, io.EOF
	}
	n = min(len(dst), s.n-int(at))
	s.Read(dst[:n], int(at))
	if n < len(dst) {
		err = io.EOF
	}
	return n, err
}
