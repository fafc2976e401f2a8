package datafile

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// packed is the contents of a file that is stored as gzip of four byte planes: the header of a safetensors file as it
// is (8 bytes, its length n, and n more), then of every four bytes of data the first, then of every four the second,
// the third and the fourth, then what is left of less than four. Signs and exponents of numbers stand together that
// way and compress; mantissas do not. tests/reference/planes.py makes such files: small models, recorded numbers.
type packed struct {
	header []byte
	whole  func() ([]byte, error) // inflates the file, once
}

// largestPacked bounds what a compressed file may hold, so that a small one cannot fill the memory.
const largestPacked = 256 << 20

// openPacked returns the contents of a file that is stored compressed and their length, nil for any other file.
func openPacked(fd *os.File, stored int64) (*packed, int64) {
	r, err := gzip.NewReader(io.NewSectionReader(fd, 0, stored))
	if err != nil {
		return nil, 0 // no gzip file
	}
	var end, begin [8]byte
	if _, err := fd.ReadAt(end[:4], stored-4); err != nil {
		return nil, 0
	}
	size := int64(binary.LittleEndian.Uint32(end[:]))
	if _, err := io.ReadFull(r, begin[:]); err != nil || size < int64(len(begin)) || size > largestPacked {
		return nil, 0
	}
	n := binary.LittleEndian.Uint64(begin[:])
	if n > uint64(size-8) {
		return nil, 0
	}
	header := append(begin[:], make([]byte, n)...)
	if _, err := io.ReadFull(r, header[8:]); err != nil {
		return nil, 0
	}
	whole := sync.OnceValues(func() ([]byte, error) {
		r, err := gzip.NewReader(io.NewSectionReader(fd, 0, stored))
		if err != nil {
			return nil, err
		}
		b := make([]byte, size)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		if n, err := r.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("it should inflate to %d bytes: %w", size, errors.Join(err, errors.ErrUnsupported))
		}
		return joined(b, len(header)), nil
	})
	return &packed{header, whole}, size
}

// joined returns b with the four planes behind the header joined.
func joined(b []byte, header int) []byte {
	out, data := bytes.Clone(b), b[header:]
	n := len(data) / 4
	words := out[header:]
	first, second, third, fourth := data[:n], data[n:2*n], data[2*n:3*n], data[3*n:4*n]
	for i := range n {
		word := words[4*i : 4*i+4]
		word[0], word[1], word[2], word[3] = first[i], second[i], third[i], fourth[i]
	}
	return out
}

// read fills dst with the bytes from offset on. Only what is behind the header inflates the file.
func (p *packed) read(dst []byte, offset int64) error {
	from := p.header
	if offset+int64(len(dst)) > int64(len(from)) {
		var err error
		if from, err = p.whole(); err != nil {
			return err
		}
	}
	copy(dst, from[offset:])
	return nil
}

// Unpacked returns the bytes of the file at path, those that it stands for if it is stored compressed.
func Unpacked(path string) (b []byte, err error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	defer Catch(&err)
	return f.All().Bytes(), nil
}
