// Package torchfile reads the tensors of files that torch.save wrote (.pth, torch 1.6 or later) without executing
// anything. Such a file is a zip archive of uncompressed members, of which data.pkl is a pickle that says which tensors
// lie in which member.
//
// A pickle is a program for a stack machine, and dangerous because it may call whatever Python can import. The machine
// here (pickle.go) cannot call anything: it knows the opcodes that torch.save needs for dictionaries of tensors, and
// the few names that such a file contains become plain data. Any other name or opcode is an error that names it. The
// result is examined only two dictionaries deep, so that a dictionary that contains itself does no harm.
package torchfile

import (
	"archive/zip"
	"bytes"
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/engine/mapped"
)

// maxPickle is the largest data.pkl in bytes; those of upscale models have about 100 kilobytes.
const maxPickle = 16 << 20

// Entry is one tensor.
type Entry struct {
	DType engine.DType // F32, F16 or BF16
	Shape []int
	Data  []byte // row-major little-endian elements, read-only, valid until File.Close
}

// File is an open file, hashed over names, types and shapes of its tensors. Its methods may be called from several
// goroutines, except Close, after which no Entry.Data may be touched.
type File struct{ mapped.Table[Entry] }

// Open maps the file at path and reads its pickle (see mapped.Parsed).
func Open(path string) (*File, error) { return mapped.Parsed(path, OpenBytes) }

// OpenBytes reads a file held in memory. The entries point into data, which must not change while the File is used.
func OpenBytes(data []byte) (*File, error) {
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("not a file of torch.save since torch 1.6: %w", err)
	}
	members, root := map[string][]byte{}, ""
	for _, m := range archive.File {
		at, err := m.DataOffset()
		size := m.UncompressedSize64
		if err != nil || m.Method != zip.Store || size != m.CompressedSize64 || at < 0 || at > int64(len(data)) ||
			size > uint64(int64(len(data))-at) {
			return nil, fmt.Errorf("member %q is compressed or lies outside the file", short(m.Name))
		}
		if _, twice := members[m.Name]; twice {
			return nil, fmt.Errorf("member %q is there twice", short(m.Name))
		}
		members[m.Name] = data[at:][:size:size]
		if folder, ok := strings.CutSuffix(m.Name, "/data.pkl"); ok {
			root = folder
		}
	}
	pickle, ok := members[root+"/data.pkl"]
	if order, ok := members[root+"/byteorder"]; ok && string(order) != "little" {
		return nil, fmt.Errorf("bytes are in %q order, little is read", short(string(order)))
	}
	if !ok || len(pickle) > maxPickle {
		return nil, fmt.Errorf("data.pkl is missing or has more than %d bytes", maxPickle)
	}
	top, err := unpickle(pickle)
	if err != nil {
		return nil, err
	}
	var header strings.Builder
	entries := map[string]Entry{}
	for _, key := range top.keys {
		t, ok := top.values[key].(*tensor)
		if !ok {
			continue // counters and settings of the training
		}
		e, err := t.entry(members, root)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", short(key), err)
		}
		entries[key] = e
		fmt.Fprintf(&header, "%q %v %v\n", key, e.DType, e.Shape)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("holds no dictionary of tensors")
	}
	return &File{mapped.NewTable(data, []byte(header.String()), entries)}, nil
}

// entry returns the tensor as an Entry. Its elements must be contiguous.
func (t *tensor) entry(members map[string][]byte, root string) (Entry, error) {
	n, size := int64(1), int64(t.from.dtype.Size())
	data, ok := members[root+"/data/"+t.from.key]
	if !ok {
		return Entry{}, fmt.Errorf("data/%s is missing", short(t.from.key))
	}
	e := Entry{DType: t.from.dtype}
	if len(t.shape) != len(t.stride) || len(t.shape) > 8 {
		return Entry{}, fmt.Errorf("shape %v with strides %v", t.shape, t.stride)
	}
	for i, d := range slices.Backward(t.shape) {
		if d > 1 && t.stride[i] != n {
			return Entry{}, fmt.Errorf("elements of shape %v lie %v apart, want them one behind the other", t.shape, t.stride)
		}
		if d < 0 || d > 0 && n > int64(len(data))/d {
			return Entry{}, fmt.Errorf("shape %v does not fit %d bytes", t.shape, len(data))
		}
		n *= d
		e.Shape = append(e.Shape, int(d))
	}
	slices.Reverse(e.Shape)
	if t.offset < 0 || t.offset > int64(len(data)) || (t.offset+n)*size > int64(len(data)) {
		return Entry{}, fmt.Errorf("elements %d to %d lie outside %d bytes", t.offset, t.offset+n, len(data))
	}
	e.Data = data[t.offset*size : (t.offset+n)*size]
	return e, nil
}

// short truncates text of a file for an error.
func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
