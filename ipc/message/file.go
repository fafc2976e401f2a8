package message

import (
	"errors"
	"hash/crc32"
	"os"
	"path"
	"path/filepath"

	"patchbay/node/files"
)

// File is one output with its contents.
type File struct {
	Ref  OutputRef `json:"ref"`
	Data []byte    `json:"data"`
}

// FileOf describes an output of package node.
func FileOf(o files.Output) File {
	return File{
		Ref: OutputRef{
			Node: o.Node, Index: o.Index, Kind: o.Kind, Type: o.Type, Prefix: o.Prefix, Ext: o.Ext, Bare: o.Bare,
			Width: o.Width, Height: o.Height, Bytes: len(o.Data), CRC32C: Checksum(o.Data),
		},
		Data: o.Data,
	}
}

// Output is the inverse of FileOf.
func (f File) Output() files.Output {
	r := f.Ref
	return files.Output{
		Node: r.Node, Index: r.Index, Kind: r.Kind, Prefix: r.Prefix, Type: r.Type, Ext: r.Ext, Bare: r.Bare,
		Data: f.Data, Width: r.Width, Height: r.Height,
	}
}

// Save writes a file into a folder under the name that ComfyUI would choose, and returns that name relative to the
// folder. It never replaces a file.
func (f File) Save(dir string) (string, error) {
	ref, err := files.Commit(dir, f.Output())
	if err != nil {
		return "", StoreError(err)
	}
	return path.Join(ref.Subfolder, ref.Filename), nil
}

// Checksum returns the CRC-32C (Castagnoli) of data.
func Checksum(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

// WriteSynced writes a file, creating its folders, and returns once the contents and the name are on disk (fsync).
func WriteSynced(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return files.SyncFolder(filepath.Dir(path))
}
