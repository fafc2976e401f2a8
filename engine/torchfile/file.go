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
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// maxPickle is the largest data.pkl in bytes; those of upscale models have about 100 kilobytes.
const maxPickle = 16 << 20

// Tensor is one tensor.
type Tensor struct {
	DType engine.DType // F32, F16 or BF16
	Shape []int
	Data  datafile.Span // row-major little-endian elements, readable until File.Close
}

// File is an open file, hashed over names, types and shapes of its tensors. Its methods may be called from several
// goroutines, except Close, after which no Entry.Data may be touched.
type File struct{ datafile.Table[Tensor] }

// Open reads the pickle of the file at path (see datafile.Parsed).
func Open(path string) (*File, error) { return datafile.Parsed(path, parse) }

// OpenBytes reads a file held in memory. The entries point into data, which must not change while the File is used.
func OpenBytes(data []byte) (*File, error) { return parse(datafile.Of(data)) }

func parse(data datafile.Span) (*File, error) {
	archive, err := zip.NewReader(data, int64(data.Len()))
	if err != nil {
		return nil, fmt.Errorf("not a file of torch.save since torch 1.6: %w", err)
	}
	members, root := map[string]datafile.Span{}, ""
	for _, m := range archive.File {
		at, err := m.DataOffset()
		size := m.UncompressedSize64
		if err != nil || m.Method != zip.Store || size != m.CompressedSize64 || at < 0 || at > int64(data.Len()) ||
			size > uint64(int64(data.Len())-at) {
			return nil, fmt.Errorf("member %q is compressed or lies outside the file", short(m.Name))
		}
		if _, twice := members[m.Name]; twice {
			return nil, fmt.Errorf("member %q is there twice", short(m.Name))
		}
		members[m.Name] = data.Slice(int(at), int(at)+int(size))
		if folder, ok := strings.CutSuffix(m.Name, "/data.pkl"); ok {
			root = folder
		}
	}
	pickle, ok := members[root+"/data.pkl"]
	if order, ok := members[root+"/byteorder"]; ok && string(first(order)) != "little" {
		return nil, fmt.Errorf("bytes are in %q order, little is read", string(first(order)))
	}
	if !ok || pickle.Len() > maxPickle {
		return nil, fmt.Errorf("data.pkl is missing or has more than %d bytes", maxPickle)
	}
	top, err := unpickle(pickle.Bytes())
	if err != nil {
		return nil, err
	}
	var header strings.Builder
	entries := map[string]Tensor{}
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
	return &File{datafile.NewTable(data, []byte(header.String()), entries)}, nil
}

// entry returns the tensor as an Entry. Its elements must be contiguous.
func (t *tensor) entry(members map[string]datafile.Span, root string) (Tensor, error) {
	n, size := int64(1), int64(t.from.dtype.Size())
	data, ok := members[root+"/data/"+t.from.key]
	if !ok {
		return Tensor{}, fmt.Errorf("data/%s is missing", short(t.from.key))
	}
	e := Tensor{DType: t.from.dtype}
	if len(t.shape) != len(t.stride) || len(t.shape) > 8 {
		return Tensor{}, fmt.Errorf("shape %v with strides %v", t.shape, t.stride)
	}
	for i, d := range slices.Backward(t.shape) {
		if d > 1 && t.stride[i] != n {
			return Tensor{}, fmt.Errorf("elements of shape %v lie %v apart, want them one behind the other", t.shape, t.stride)
		}
		if d < 0 || d > 0 && n > int64(data.Len())/d {
			return Tensor{}, fmt.Errorf("shape %v does not fit %d bytes", t.shape, data.Len())
		}
		n *= d
		e.Shape = append(e.Shape, int(d))
	}
	slices.Reverse(e.Shape)
	if t.offset < 0 || t.offset > int64(data.Len()) || (t.offset+n)*size > int64(data.Len()) {
		return Tensor{}, fmt.Errorf("elements %d to %d lie outside %d bytes", t.offset, t.offset+n, data.Len())
	}
	e.Data = data.Slice(int(t.offset*size), int((t.offset+n)*size))
	return e, nil
}

// first returns the first bytes of a member that is meant to be short.
func first(s datafile.Span) []byte { return s.Slice(0, min(s.Len(), 80)).Bytes() }

// short truncates text of a file for an error.
func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
