package gguf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"patchbay/engine/datafile"
)

// defaultAlign is the alignment of tensor data when the metadata has no general.alignment.
const defaultAlign = 32

// alignKey and shapeKey are the metadata keys that this package itself interprets. Converters of image models reshape
// tensors whose rows do not fill blocks (or that have more dimensions than ggml knows) and store the true shape under
// shapeKey + tensor name.
const (
	alignKey = "general.alignment"
	shapeKey = "comfy.gguf.orig_shape."
)

// info is one tensor info: an entry, whose data is set by place, and where this data lies.
type info struct {
	Tensor
	offset, size uint64 // within the data section
}

// header is everything before the data.
type header struct {
	metadata map[string]any
	infos    []info
	body     int // byte where the data section begins
}

// parseHeader reads and checks everything before the data, and that every tensor lies inside the file and overlaps no
// other.
func parseHeader(file datafile.Span) (*header, error) {
	most := min(file.Len(), maxHeader)
	for n := min(firstRead, most); ; n = min(4*n, most) {
		r := &reader{data: file.Slice(0, n).Bytes()}
		h, err := r.header(file)
		if err == nil || !r.short || n == most {
			return h, err
		}
	}
}

// header parses what the reader has of the file.
func (r *reader) header(file datafile.Span) (*header, error) {
	magic, err := r.take(4, "magic")
	if err != nil || string(magic) != "GGUF" {
		return nil, fmt.Errorf("not a GGUF file: starts with %q, not with GGUF", r.data[:min(4, len(r.data))])
	}
	version, err := r.u32("version")
	if err != nil {
		return nil, err
	}
	switch {
	case version == 2 || version == 3:
	case version&0xffff == 0:
		return nil, fmt.Errorf("big-endian GGUF file (version %d): only little-endian files are read",
			bits.ReverseBytes32(version))
	default:
		return nil, fmt.Errorf("GGUF version %d is not read (allowed: 2, 3)", version)
	}
	tensors, err := r.u64("tensor count")
	if err != nil {
		return nil, err
	}
	pairs, err := r.u64("metadata count")
	if err != nil {
		return nil, err
	}
	if tensors > maxCount || pairs > maxCount {
		return nil, fmt.Errorf("header counts %d tensors and %d metadata pairs, at most %d of each are allowed",
			tensors, pairs, maxCount)
	}
	h := &header{metadata: map[string]any{}}
	if err := h.readMetadata(r, pairs); err != nil {
		return nil, err
	}
	if err := h.readInfos(r, tensors); err != nil {
		return nil, err
	}
	align, err := h.alignment()
	if err != nil {
		return nil, err
	}
	h.body = r.at + -r.at&(align-1)
	if h.body > file.Len() && len(h.infos) == 0 {
		h.body = file.Len() // a file of metadata only needs no padding
	}
	return h, h.place(file, uint64(align))
}

// readMetadata reads n key-value pairs. n is not trusted: each pair needs bytes, so the loop ends with the file.
func (h *header) readMetadata(r *reader, n uint64) error {
	for i := range n {
		key, err := r.name("metadata key")
		if err != nil {
			return fmt.Errorf("metadata pair %d of %d: %w", i, n, err)
		}
		if _, twice := h.metadata[key]; twice {
			return fmt.Errorf("metadata key %q occurs twice", key)
		}
		kind, err := r.u32("value type")
		if err != nil {
			return fmt.Errorf("metadata %q: %w", key, err)
		}
		if h.metadata[key], err = r.value(kind, maxNest); err != nil {
			return fmt.Errorf("metadata %q: %w", key, err)
		}
	}
	return nil
}

func (h *header) readInfos(r *reader, n uint64) error {
	seen := map[string]bool{}
	for i := range n {
		name, err := r.name("tensor name")
		if err != nil {
			return fmt.Errorf("tensor %d of %d: %w", i, n, err)
		}
		if seen[name] {
			return fmt.Errorf("tensor %q occurs twice in the header", name)
		}
		seen[name] = true
		t, err := readInfo(r, name)
		if err == nil {
			err = h.reshape(&t.Tensor)
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		h.infos = append(h.infos, t)
	}
	return nil
}

// readInfo reads dimensions, type and offset of one tensor.
func readInfo(r *reader, name string) (info, error) {
	dims, err := r.u32("dimension count")
	if err != nil {
		return info{}, err
	}
	if dims > maxDims {
		return info{}, fmt.Errorf("%d dimensions, at most %d are allowed", dims, maxDims)
	}
	raw, err := r.take(8*uint64(dims)+12, "dimensions, type and offset")
	if err != nil {
		return info{}, err
	}
	t := info{Tensor: Tensor{Name: name, Shape: make([]int, dims)}}
	count := uint64(1)
	for i := range t.Shape {
		d := binary.LittleEndian.Uint64(raw[8*i:])
		hi, lo := bits.Mul64(count, d)
		// Elements are limited so that their f32 size is an int; zero dimensions must not hide large ones.
		if hi != 0 || lo > 1<<60 || d > 1<<60 {
			return info{}, fmt.Errorf("dimension %d is %d: the size overflows", i, d)
		}
		t.Shape[len(t.Shape)-1-i], count = int(d), lo // the file has the innermost dimension first
	}
	raw = raw[8*dims:]
	t.Type, t.offset = Type(binary.LittleEndian.Uint32(raw)), binary.LittleEndian.Uint64(raw[4:])
	l := lookup(t.Type)
	if l.block == 0 {
		return info{}, fmt.Errorf("unknown element type %d", uint32(t.Type))
	}
	row := 1
	if dims > 0 {
		row = t.Shape[dims-1]
	}
	if row%l.block != 0 {
		return info{}, fmt.Errorf("shape %v: rows of %s must be multiples of %d elements", t.Shape, t.Type, l.block)
	}
	hi, size := bits.Mul64(count/uint64(l.block), uint64(l.size))
	if hi != 0 || size > 1<<62 {
		return info{}, fmt.Errorf("shape %v of %s overflows", t.Shape, t.Type)
	}
	t.size = size
	return t, nil
}

// reshape gives e the shape that it had before the conversion, if the metadata has it.
func (h *header) reshape(e *Tensor) error {
	v, ok := h.metadata[shapeKey+e.Name]
	if !ok {
		return nil
	}
	var shape []int
	switch dims := v.(type) {
	case []int32:
		shape = ints(dims)
	case []uint32:
		shape = ints(dims)
	case []int64:
		shape = ints(dims)
	case []uint64:
		shape = ints(dims)
	default:
		return fmt.Errorf("metadata %s%s must be an array of integers", shapeKey, e.Name)
	}
	left := e.Len()
	for _, d := range shape {
		if d < 1 || left%d != 0 {
			return fmt.Errorf("metadata %s%s is %v, which does not fit shape %v", shapeKey, e.Name, shape, e.Shape)
		}
		left /= d
	}
	if left != 1 || len(shape) > maxDims {
		return fmt.Errorf("metadata %s%s is %v, which does not fit shape %v", shapeKey, e.Name, shape, e.Shape)
	}
	e.Shape = shape
	return nil
}

// ints converts dimensions. Those that do not fit become negative or wrong, and the caller rejects them.
func ints[T int32 | uint32 | int64 | uint64](dims []T) []int {
	out := make([]int, len(dims))
	for i, d := range dims {
		out[i] = int(d)
	}
	return out
}

// alignment returns general.alignment or its default.
func (h *header) alignment() (int, error) {
	v, ok := h.metadata[alignKey]
	if !ok {
		return defaultAlign, nil
	}
	n, ok := v.(uint32)
	if !ok || n == 0 || n > maxAlign || n&(n-1) != 0 {
		return 0, fmt.Errorf("metadata %s is %v (%T), must be a uint32 power of two, at most %d", alignKey, v, v, maxAlign)
	}
	return int(n), nil
}

// place sets the data of every tensor to its part of the file and checks that no two overlap.
func (h *header) place(file datafile.Span, align uint64) error {
	if h.body > file.Len() {
		return fmt.Errorf("truncated file: the data begins at byte %d, the file has %d", h.body, file.Len())
	}
	body := file.Slice(h.body, file.Len())
	for i := range h.infos {
		t := &h.infos[i]
		if t.offset%align != 0 {
			return fmt.Errorf("tensor %q: offset %d is not a multiple of the alignment %d", t.Name, t.offset, align)
		}
		if left := uint64(body.Len()); t.offset > left || t.size > left-t.offset {
			return fmt.Errorf("truncated file: tensor %q needs bytes [%d, %d+%d) of the data, which has %d", t.Name, t.offset,
				t.offset, t.size, left)
		}
		t.Data = body.Slice(int(t.offset), int(t.offset+t.size))
	}
	order := make([]*info, len(h.infos))
	for i := range order {
		order[i] = &h.infos[i]
	}
	slices.SortFunc(order, func(a, b *info) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset),
			cmp.Compare(a.size, b.size))
	})
	for i := 1; i < len(order); i++ {
		if a, b := order[i-1], order[i]; a.offset+a.size > b.offset {
			return fmt.Errorf("tensors %q and %q overlap in the data", a.Name, b.Name)
		}
	}
	return nil
}
