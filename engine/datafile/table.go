package datafile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"patchbay/fault"
)

// Parsed opens the file at path and parses it into something that embeds a Table. Only what parse asks for is read.
// Errors name the path and what is wrong with the file.
func Parsed[T interface{ hold(*File) }](path string, parse func(Span) (T, error)) (out T, err error) {
	f, err := Open(path)
	if err != nil {
		return out, err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // the first error is the one to report
		}
	}()
	defer Catch(&err)
	f.header.reading = sha256.New()
	if out, err = parse(f.All()); err != nil {
		if !fault.Is(err, fault.FileChanged) {
			err = fmt.Errorf("read checkpoint %s: %w", path, err)
		}
		return out, err
	}
	f.header.sum, f.header.reading = f.header.reading.Sum(nil), nil
	out.hold(f)
	return out, nil
}

// Table is a file of named entries whose data is read on demand. Its methods may be called from several goroutines,
// except Close, after which no data of an entry may be read.
type Table[E any] struct {
	file    *File // nil: in memory
	size    int64
	names   []string
	entries map[string]E
	hash    string
}

// NewTable returns the table of the file data. header is the part of it, or any text, that describes the entries; it is
// what HeaderHash hashes.
func NewTable[E any](data Span, header []byte, entries map[string]E) Table[E] {
	sum := sha256.Sum256(header)
	return Table[E]{
		size: int64(data.Len()), names: slices.Sorted(maps.Keys(entries)), entries: entries,
		hash: hex.EncodeToString(sum[:]),
	}
}

// hold makes f the file of the table, which Close closes.
func (t *Table[E]) hold(f *File) { t.file = f }

// Size returns the length of the file in bytes.
func (t *Table[E]) Size() int64 { return t.size }

// Names returns the names of the entries in sorted order. The caller must not change the slice.
func (t *Table[E]) Names() []string { return t.names }

func (t *Table[E]) Entry(name string) (E, bool) {
	e, ok := t.entries[name]
	return e, ok
}

// HeaderHash returns the SHA-256 of the header in hex. Files of equal hash have the same entries at the same places and
// the same metadata.
func (t *Table[E]) HeaderHash() string { return t.hash }

// Close closes the file. Entries must not be used afterwards. A second Close does nothing.
func (t *Table[E]) Close() error {
	t.entries = nil
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}
