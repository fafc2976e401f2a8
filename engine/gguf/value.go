package gguf

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// The limits on hostile files, in addition to the length of the file itself.
const (
	maxName  = 65535 // bytes of a key or tensor name; the format's own limit for keys
	maxNest  = 4     // arrays within arrays
	maxDims  = 8     // of a tensor; ggml has 4, converters of image models write 5
	maxAlign = 1 << 20

	firstRead = 1 << 20  // bytes of header that are read first; it grows to four times as much until it is enough
	maxHeader = 64 << 20 // bytes of header; vocabularies take a few MB
	maxCount  = 100_000  // tensors, and metadata pairs; ten times what the largest released models have
)

// The value types of the format (enum gguf_metadata_value_type).
const (
	kindUint8 = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

// reader reads the header sequentially. Every read is checked against the bytes that are left.
type reader struct {
	data  []byte
	at    int
	short bool // more bytes of the file were needed
}

func (r *reader) take(n uint64, what string) ([]byte, error) {
	if left := uint64(len(r.data) - r.at); n > left {
		r.short = true
		if len(r.data) == maxHeader {
			return nil, fmt.Errorf("header is longer than %d bytes", maxHeader)
		}
		return nil, fmt.Errorf("truncated file: %s at byte %d needs %d bytes, %d bytes are missing", what, r.at, n, n-left)
	}
	b := r.data[r.at : r.at+int(n)]
	r.at += int(n)
	return b, nil
}

func (r *reader) u32(what string) (uint32, error) {
	b, err := r.take(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *reader) u64(what string) (uint64, error) {
	b, err := r.take(8, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// text reads a length and that many bytes. The result does not point into the file.
func (r *reader) text(what string) (string, error) {
	n, err := r.u64(what)
	if err != nil {
		return "", err
	}
	b, err := r.take(n, what)
	return string(b), err
}

// name reads a key or a tensor name.
func (r *reader) name(what string) (string, error) {
	at := r.at
	s, err := r.text(what)
	switch {
	case err != nil:
		return "", err
	case s == "" || len(s) > maxName || !utf8.ValidString(s):
		return "", fmt.Errorf("%s at byte %d has %d bytes; it must be UTF-8 of 1 to %d bytes", what, at, len(s), maxName)
	}
	return s, nil
}

// scalars returns the kinds of fixed size, indexed by number: their size in bytes, and what decodes one value or an
// array.
func scalars() [13]struct {
	size uint64
	read func(b []byte, array bool) any
} {
	return [...]struct {
		size uint64
		read func(b []byte, array bool) any
	}{
		kindUint8: {1, decode[uint8]}, kindInt8: {1, decode[int8]}, kindBool: {1, decode[bool]},
		kindUint16: {2, decode[uint16]}, kindInt16: {2, decode[int16]},
		kindUint32: {4, decode[uint32]}, kindInt32: {4, decode[int32]}, kindFloat32: {4, decode[float32]},
		kindUint64: {8, decode[uint64]}, kindInt64: {8, decode[int64]}, kindFloat64: {8, decode[float64]},
	}
}

// decode returns the values in b: a slice of them if array is set, else the only one.
func decode[T any](b []byte, array bool) any {
	var one T
	out := make([]T, len(b)/binary.Size(one))
	_, _ = binary.Decode(b, binary.LittleEndian, out) // b has exactly their size
	if array {
		return out
	}
	return out[0]
}

// fixed reads n values of a kind of fixed size, as an array or a single one.
func (r *reader) fixed(kind uint32, n uint64, array bool) (any, error) {
	k := scalars()[kind]
	b, err := r.take(n*k.size, "value")
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(b, func(v byte) bool { return v > 1 }); kind == kindBool && i >= 0 {
		return nil, fmt.Errorf("boolean %d of %d is %d, must be 0 or 1", i, n, b[i])
	}
	return k.read(b, array), nil
}

// value reads one metadata value of that kind, arrays nested at most depth times.
func (r *reader) value(kind uint32, depth int) (any, error) {
	switch {
	case kind == kindString:
		return r.text("string")
	case kind == kindArray:
		return r.array(depth)
	case kind > kindFloat64:
		return nil, fmt.Errorf("unknown value type %d", kind)
	}
	return r.fixed(kind, 1, false)
}

// array reads element type, count and elements. The count is checked against the bytes that are left before anything is
// allocated.
func (r *reader) array(depth int) (any, error) {
	if depth == 0 {
		return nil, fmt.Errorf("arrays nested deeper than %d", maxNest)
	}
	kind, err := r.u32("array type")
	if err != nil {
		return nil, err
	}
	n, err := r.u64("array length")
	if err != nil {
		return nil, err
	}
	var least uint64
	switch {
	case kind == kindString:
		least = 8
	case kind == kindArray:
		least = 12
	case kind > kindFloat64:
		return nil, fmt.Errorf("unknown array type %d", kind)
	default:
		least = scalars()[kind].size
	}
	if left := uint64(len(r.data) - r.at); n > left/least {
		r.short = true
		return nil, fmt.Errorf("truncated file: array of %d elements at byte %d, only %d bytes follow", n, r.at, left)
	}
	switch kind {
	case kindString:
		return list(n, func() (string, error) { return r.text("string") })
	case kindArray:
		return list(n, func() (any, error) { return r.array(depth - 1) })
	}
	return r.fixed(kind, n, true)
}

func list[T any](n uint64, read func() (T, error)) ([]T, error) {
	out := make([]T, n)
	for i := range out {
		var err error
		if out[i], err = read(); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
	}
	return out, nil
}
