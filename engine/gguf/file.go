package gguf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
)

// File is an open checkpoint. Its methods may be called from several goroutines, except Close, after which no
// Entry.Data may be touched.
type File struct {
	names    []string
	entries  map[string]Entry
	metadata map[string]any
	version  int
	hash     string
	data     []byte             // the whole file
	unmap    func([]byte) error // nil when data is ordinary memory
}

// Open maps the file at path and checks its header. Nothing but the header is read. Where mapping is not possible the
// file is read whole. The file must not shrink while it is open. Errors name the path and what is wrong with the file.
func Open(path string) (*File, error) {
	fd, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err) // the os error names the path
	}
	defer func() { _ = fd.Close() }() // only read from, and a mapping outlives it
	stat, err := fd.Stat()
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	if stat.IsDir() {
		return nil, fmt.Errorf("open checkpoint %s: is a folder, not a file", path)
	}
	data, unmap, err := mapFile(fd, stat.Size())
	if err != nil {
		if data, err = io.ReadAll(fd); err != nil {
			return nil, fmt.Errorf("read checkpoint %s: %w", path, err)
		}
		unmap = nil
	}
	f, err := OpenBytes(data)
	if err != nil {
		if unmap != nil {
			_ = unmap(data) // the header error is the one to report
		}
		return nil, fmt.Errorf("read checkpoint %s: %w", path, err)
	}
	f.unmap = unmap
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
		names: make([]string, len(h.infos)), entries: make(map[string]Entry, len(h.infos)),
		metadata: h.metadata, version: int(h.version), hash: hex.EncodeToString(sum[:]), data: data,
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

// Text returns the metadata of that key when it is a string, otherwise "".
func (f *File) Text(key string) string {
	s, _ := f.metadata[key].(string)
	return s
}

// Architecture returns general.architecture, e.g. "flux", "sd3", "t5encoder".
func (f *File) Architecture() string { return f.Text("general.architecture") }

// Version returns the version of the format that the file is written in, 2 or 3.
func (f *File) Version() int { return f.version }

// HeaderHash returns the SHA-256 of everything before the tensor data in hex. Files of equal hash have the same tensors
// at the same places and the same metadata.
func (f *File) HeaderHash() string { return f.hash }

// Size returns the length of the file in bytes.
func (f *File) Size() int64 { return int64(len(f.data)) }

// DropPages tells the system that the mapped pages read so far are not needed again; later reads fetch them anew. It
// does nothing for files in memory.
func (f *File) DropPages() {
	if f.unmap != nil {
		dropPages(f.data)
	}
}

// Close unmaps the file. Entries must not be used afterwards. A second Close does nothing.
func (f *File) Close() error {
	data, unmap := f.data, f.unmap
	f.data, f.unmap, f.entries = nil, nil, nil
	if unmap == nil {
		return nil
	}
	if err := unmap(data); err != nil {
		return fmt.Errorf("close checkpoint: %w", err)
	}
	return nil
}
