// Package mapped maps files into memory, so that only what is read takes memory. It knows no format: safetensors, gguf
// and torchfile parse the contents.
package mapped

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// File is a file in memory. Its methods may be called from several goroutines, except Close, after which Data may not
// be touched. The zero value holds nothing.
type File struct {
	Data  []byte             // the whole file, read-only
	unmap func([]byte) error // nil when Data is ordinary memory
}

// Open maps the file at path, or reads it whole where mapping is not possible. The file must not shrink while it is
// open. Errors name the path.
func Open(path string) (File, error) {
	fd, err := os.Open(path)
	if err != nil {
		return File{}, fmt.Errorf("open checkpoint: %w", err) // the os error names the path
	}
	defer func() { _ = fd.Close() }() // only read from, and a mapping outlives it
	info, err := fd.Stat()
	if err != nil {
		return File{}, fmt.Errorf("open checkpoint: %w", err)
	}
	if info.IsDir() {
		return File{}, fmt.Errorf("open checkpoint %s: is a folder, not a file", path)
	}
	data, unmap, err := mapFile(fd, info.Size())
	if err != nil {
		if data, err = io.ReadAll(fd); err != nil {
			return File{}, fmt.Errorf("read checkpoint %s: %w", path, err)
		}
		unmap = nil
	}
	return File{data, unmap}, nil
}

// Size returns the length of the file in bytes.
func (f *File) Size() int64 { return int64(len(f.Data)) }

// DropPages tells the system that the mapped pages read so far are not needed again; later reads fetch them anew. It
// does nothing for files in ordinary memory.
func (f *File) DropPages() {
	if f.unmap != nil {
		dropPages(f.Data)
	}
}

// Close unmaps the file. A second Close does nothing.
func (f *File) Close() error {
	data, unmap := f.Data, f.unmap
	*f = File{}
	if unmap == nil {
		return nil
	}
	if err := unmap(data); err != nil {
		return fmt.Errorf("close checkpoint: %w", err)
	}
	return nil
}

// Parsed maps the file at path and parses it into something that embeds a Table. Only what parse looks at is read;
// where mapping is not possible the file is read whole. The file must not shrink while it is open. Errors name the path
// and what is wrong with the file.
func Parsed[T interface{ hold(File) }](path string, parse func(data []byte) (T, error)) (T, error) {
	f, err := Open(path)
	if err != nil {
		var none T
		return none, err
	}
	out, err := parse(f.Data)
	if err != nil {
		_ = f.Close() // the first error is the one to report
		return out, fmt.Errorf("read checkpoint %s: %w", path, err)
	}
	out.hold(f)
	return out, nil
}

// Table is a file of named entries that point into it. Its methods may be called from several goroutines, except Close,
// after which no data of an entry may be touched.
type Table[E any] struct {
	File

	names   []string
	entries map[string]E
	hash    string
}

// NewTable returns the table of the file data. header is the part of it, or any text, that describes the entries; it is
// what HeaderHash hashes.
func NewTable[E any](data, header []byte, entries map[string]E) Table[E] {
	sum := sha256.Sum256(header)
	return Table[E]{
		File: File{Data: data}, names: slices.Sorted(maps.Keys(entries)), entries: entries, hash: hex.EncodeToString(sum[:]),
	}
}

// hold makes f the file of the table, which Close unmaps.
func (t *Table[E]) hold(f File) { t.File = f }

// Names returns the names of the entries in sorted order. The caller must not change the slice.
func (t *Table[E]) Names() []string { return t.names }

// Entry returns the entry of that name and whether there is one.
func (t *Table[E]) Entry(name string) (E, bool) {
	e, ok := t.entries[name]
	return e, ok
}

// HeaderHash returns the SHA-256 of the header in hex. Files of equal hash have the same entries at the same places and
// the same metadata.
func (t *Table[E]) HeaderHash() string { return t.hash }

// Close unmaps the file. Entries must not be used afterwards. A second Close does nothing.
func (t *Table[E]) Close() error {
	t.entries = nil
	return t.File.Close()
}
