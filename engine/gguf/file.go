package gguf

import "patchbay/engine/datafile"

// File is an open checkpoint, hashed over everything before the tensor data. Its methods may be called from several
// goroutines, except Close, after which no Entry.Data may be touched.
type File struct {
	datafile.Table[Tensor]
	metadata map[string]any
}

// Open reads and checks the header of the file at path (see datafile.Parsed).
func Open(path string) (*File, error) { return datafile.Parsed(path, parse) }

// OpenBytes checks the header of a file held in memory. The entries point into data, which stays the caller's and must
// not change.
func OpenBytes(data []byte) (*File, error) { return parse(datafile.Of(data)) }

func parse(data datafile.Span) (*File, error) {
	h, err := parseHeader(data)
	if err != nil {
		return nil, err
	}
	entries := make(map[string]Tensor, len(h.infos))
	for _, t := range h.infos {
		entries[t.Name] = t.Tensor
	}
	return &File{datafile.NewTable(data, data.Slice(0, h.body).Bytes(), entries), h.metadata}, nil
}

// Metadata returns the key-value pairs: bool, string, float32, float64, sized integers, slices of these ([]string,
// []int32 ...), and []any for arrays of arrays. The map is the file's: do not change it. It stays valid after Close.
func (f *File) Metadata() map[string]any { return f.metadata }
