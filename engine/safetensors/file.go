package safetensors

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
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
	metadata map[string]string
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
	defer func() { _ = fd.Close() }() // read only: nothing is lost
	info, err := fd.Stat()
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	if info.IsDir() {
		return nil, fmt.Errorf("open checkpoint %s: is a folder, not a file", path)
	}
	data, unmap, err := mapFile(fd, info.Size())
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
	sum := sha256.Sum256(header)
	f := &File{entries: entries, metadata: metadata, hash: hex.EncodeToString(sum[:]), data: data}
	f.names = make([]string, 0, len(entries))
	for name := range entries {
		f.names = append(f.names, name)
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

// Metadata returns the strings under __metadata__, an empty map when there are none. The map is the file's: do not
// change it.
func (f *File) Metadata() map[string]string { return f.metadata }

// HeaderHash returns the SHA-256 of the JSON header in hex. Files of equal hash have the same tensors at the same
// places and the same metadata.
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
