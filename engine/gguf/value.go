package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// The limits on hostile files beside the length of the file itself.
const (
	maxName  = 65535 // bytes of a key or tensor name; the format's own limit for keys
	maxNest  = 4     // arrays within arrays
	maxDims  = 8     // of a tensor; ggml has 4, converters of image models write 5
	maxAlign = 1 << 20

	maxHeader = 256 << 20 // bytes of header; vocabularies take a few MB
	maxCount  = 100_000   // tensors, and metadata pairs; ten times what the largest released models have
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

// reader walks over the header. Every read checks the bytes that are left.
type reader struct {
	data []byte
	at   int
}

// take returns the next n bytes.
func (r *reader) take(n uint64, what string) ([]byte, error) {
	if left := uint64(len(r.data) - r.at); n > left {
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

// value reads one metadata value of that kind, arrays nested at most depth times.
func (r *reader) value(kind uint32, depth int) (any, error) {
	switch kind {
	case kindString:
		return r.text("string")
	case kindArray:
		return r.array(depth)
	}
	size := kindSize(kind)
	if size == 0 {
		return nil, fmt.Errorf("unknown value type %d", kind)
	}
	b, err := r.take(size, "value")
	if err != nil {
		return nil, err
	}
	return scalar(kind, b)
}

// kindSize returns the bytes of a scalar of that kind, 0 for kinds that are none.
func kindSize(kind uint32) uint64 {
	switch kind {
	case kindUint8, kindInt8, kindBool:
		return 1
	case kindUint16, kindInt16:
		return 2
	case kindUint32, kindInt32, kindFloat32:
		return 4
	case kindUint64, kindInt64, kindFloat64:
		return 8
	default:
		return 0
	}
}

// scalar decodes b, which has kindSize(kind) bytes.
func scalar(kind uint32, b []byte) (any, error) {
	switch kind {
	case kindUint8:
		return b[0], nil
	case kindInt8:
		return int8(b[0]), nil
	case kindBool:
		if b[0] > 1 {
			return nil, fmt.Errorf("boolean is %d, must be 0 or 1", b[0])
		}
		return b[0] == 1, nil
	case kindUint16:
		return binary.LittleEndian.Uint16(b), nil
	case kindInt16:
		return int16(binary.LittleEndian.Uint16(b)), nil
	case kindUint32:
		return binary.LittleEndian.Uint32(b), nil
	case kindInt32:
		return int32(binary.LittleEndian.Uint32(b)), nil
	case kindFloat32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b)), nil
	case kindUint64:
		return binary.LittleEndian.Uint64(b), nil
	case kindInt64:
		return int64(binary.LittleEndian.Uint64(b)), nil
	default: // kindFloat64
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), nil
	}
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
	least := kindSize(kind)
	switch kind {
	case kindString:
		least = 8
	case kindArray:
		least = 12
	}
	if least == 0 {
		return nil, fmt.Errorf("unknown array type %d", kind)
	}
	if left := uint64(len(r.data) - r.at); n > left/least {
		return nil, fmt.Errorf("truncated file: array of %d elements at byte %d, only %d bytes follow", n, r.at, left)
	}
	switch kind {
	case kindUint8:
		return list[uint8](r, kind, int(n), depth)
	case kindInt8:
		return list[int8](r, kind, int(n), depth)
	case kindUint16:
		return list[uint16](r, kind, int(n), depth)
	case kindInt16:
		return list[int16](r, kind, int(n), depth)
	case kindUint32:
		return list[uint32](r, kind, int(n), depth)
	case kindInt32:
		return list[int32](r, kind, int(n), depth)
	case kindFloat32:
		return list[float32](r, kind, int(n), depth)
	case kindBool:
		return list[bool](r, kind, int(n), depth)
	case kindString:
		return list[string](r, kind, int(n), depth)
	case kindUint64:
		return list[uint64](r, kind, int(n), depth)
	case kindInt64:
		return list[int64](r, kind, int(n), depth)
	case kindFloat64:
		return list[float64](r, kind, int(n), depth)
	default: // arrays
		return list[any](r, kind, int(n), depth)
	}
}

// list reads n values of that kind, whose Go type is T.
func list[T any](r *reader, kind uint32, n, depth int) ([]T, error) {
	out := make([]T, n)
	for i := range out {
		v, err := r.value(kind, depth-1)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		t, ok := v.(T)
		if !ok {
			return nil, errors.New("value of another type than its array") // kinds and Go types are paired in array
		}
		out[i] = t
	}
	return out, nil
}
