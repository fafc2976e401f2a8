// Package mapped holds files in memory by mapping them, so that only what is read takes memory. It knows no format:
// safetensors and gguf parse what it holds.
package mapped

import (
	"fmt"
	"io"
	"os"
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
