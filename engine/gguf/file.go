package gguf

import "patchbay/engine/mapped"

// File is an open checkpoint, hashed over everything before the tensor data. Its methods may be called from several
// goroutines, except Close, after which no Entry.Data may be touched.
type File struct {
	mapped.Table[Entry]
	metadata map[string]any
}

// Open maps the file at path and reads and checks only its header (see mapped.Parsed).
func Open(path string) (*File, error) { return mapped.Parsed(path, OpenBytes) }

// OpenBytes checks the header of a file held in memory. The entries point into data, which stays the caller's and must
// not change.
func OpenBytes(data []byte) (*File, error) {
	h, err := parseHeader(data)
	if err != nil {
		return nil, err
	}
	entries := make(map[string]Entry, len(h.infos))
	for _, t := range h.infos {
		entries[t.Name] = t.Entry
	}
	return &File{mapped.NewTable(data, data[:h.body], entries), h.metadata}, nil
}

// Metadata returns the key-value pairs: bool, string, float32, float64, sized integers, slices of these ([]string,
// []int32 ...), and []any for arrays of arrays. The map is the file's: do not change it. It stays valid after Close.
func (f *File) Metadata() map[string]any { return f.metadata }
