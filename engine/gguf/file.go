package gguf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"patchbay/engine/mapped"
)

// File is an open checkpoint. Its methods may be called from several goroutines, except Close, after which no
// Entry.Data may be touched.
type File struct {
	mapped.File

	names    []string
	entries  map[string]Entry
	metadata map[string]any
	hash     string
}

// Open maps the file at path and checks its header. Nothing but the header is read. Where mapping is not possible the
// file is read whole. The file must not shrink while it is open. Errors name the path and what is wrong with the file.
func Open(path string) (*File, error) {
	m, err := mapped.Open(path)
	if err != nil {
		return nil, err
	}
	f, err := OpenBytes(m.Data)
	if err != nil {
		_ = m.Close() // the header error is the one to report
		return nil, fmt.Errorf("read checkpoint %s: %w", path, err)
	}
	f.File = m
	return f, nil
}

// OpenBytes checks the header of a file held in memory. The entries point into data, which stays the caller's and must
// not change.
func OpenBytes(data []byte) (*File, error) {
	h, err := parseHeader(data)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data[:h.body])
	f := &File{
		File:  mapped.File{Data: data},
		names: make([]string, len(h.infos)), entries: make(map[string]Entry, len(h.infos)),
		metadata: h.metadata, hash: hex.EncodeToString(sum[:]),
	}
	for i, t := range h.infos {
		f.names[i], f.entries[t.Name] = t.Name, t.Entry
	}
	slices.Sort(f.names)
	return f, nil
}

// Names returns the tensor names in sorted order. The slice is the file's: do not change it.
func (f *File) Names() []string { return f.names }

// Entry returns the tensor of that name, if there is one.
func (f *File) Entry(name string) (Entry, bool) {
	e, ok := f.entries[name]
	return e, ok
}

// Metadata returns the key-value pairs: bool, string, float32, float64, sized integers, slices of these ([]string,
// []int32 ...), and []any for arrays of arrays. The map is the file's: do not change it. It stays valid after Close.
func (f *File) Metadata() map[string]any { return f.metadata }

// HeaderHash returns the SHA-256 of everything before the tensor data in hex. Files of equal hash have the same tensors
// at the same places and the same metadata.
func (f *File) HeaderHash() string { return f.hash }

// Close unmaps the file. Entries must not be used afterwards. A second Close does nothing.
func (f *File) Close() error {
	f.entries = nil
	return f.File.Close()
}
