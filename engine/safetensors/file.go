package safetensors

import (
	"errors"

	"patchbay/engine/datafile"
)

// File is an open checkpoint, hashed over its JSON header. Its methods may be called from several goroutines, except
// Close, after which no Entry.Data may be touched.
type File struct {
	datafile.Table[Tensor]
	metadata map[string]string
}

// Open reads and checks the header of the file at path (see datafile.Parsed).
func Open(path string) (*File, error) { return datafile.Parsed(path, parse) }

// OpenBytes checks the header of a file held in memory. The entries point into data, which stays the caller's and must
// not change.
func OpenBytes(data []byte) (*File, error) { return parse(datafile.Of(data)) }

func parse(data datafile.Span) (*File, error) {
	header, body, err := splitHeader(data)
	if what := foreign(data); err != nil && what != "" {
		return nil, errors.New(what)
	}
	if err != nil {
		return nil, err
	}
	entries, metadata, err := parseHeader(header, body)
	if err != nil {
		return nil, err
	}
	return &File{datafile.NewTable(data, header, entries), metadata}, nil
}

// Metadata returns the strings under __metadata__, an empty map when there are none. The map is the file's: do not
// change it.
func (f *File) Metadata() map[string]string { return f.metadata }
