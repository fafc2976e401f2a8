package gguf

import (
	"fmt"

	"patchbay/engine"
)

// Entry is one tensor of a file.
type Entry struct {
	Name  string
	Type  Type
	Shape []int  // row-major like torch, i.e. the file's dimensions reversed; empty for a scalar
	Data  []byte // elements or blocks in row-major order, little-endian, read-only, valid until File.Close
}

// Len returns the number of elements.
func (e Entry) Len() int {
	n := 1
	for _, s := range e.Shape {
		n *= s
	}
	return n
}

// DType returns the engine's name of the type when the elements are stored as the engine computes with them, so that
// Data can be used as it is (f32, f16, bf16, f64, i32, i64). Quantised and exotic types give false.
func (e Entry) DType() (engine.DType, bool) {
	switch e.Type {
	case F32:
		return engine.F32, true
	case F16:
		return engine.F16, true
	case BF16:
		return engine.BF16, true
	case F64:
		return engine.F64, true
	case I32:
		return engine.I32, true
	case I64:
		return engine.I64, true
	default:
		return 0, false
	}
}

// F32 returns a copy of the elements widened to f32. The error names a type that cannot be widened.
func (e Entry) F32() ([]float32, error) {
	l, err := e.layout()
	if err != nil {
		return nil, err
	}
	v := make([]float32, e.Len())
	l.widen(v, e.Data)
	return v, nil
}

// Bytes returns the elements as little-endian bytes of d, which is f32, bf16 or f16: widened from blocks and rounded to
// nearest even. When the file already stores d the result is Data itself, otherwise it is new memory. Work memory is a
// few kilobytes beside the result.
func (e Entry) Bytes(d engine.DType) ([]byte, error) {
	switch d {
	case engine.F32, engine.BF16, engine.F16:
	default:
		return nil, fmt.Errorf("tensor %q: cannot be widened to %s (allowed: f32, bf16, f16)", e.Name, d)
	}
	if own, ok := e.DType(); ok && own == d {
		return e.Data, nil
	}
	l, err := e.layout()
	if err != nil {
		return nil, err
	}
	out := make([]byte, e.Len()*d.Size())
	var chunk [1024]float32 // a multiple of every block
	for left, src, dst := e.Len(), e.Data, out; left > 0; {
		n := min(left, len(chunk))
		l.widen(chunk[:n], src)
		engine.Narrow(dst, chunk[:n], d)
		left, src, dst = left-n, src[n/l.block*l.size:], dst[n*d.Size():]
	}
	return out, nil
}

// Rows returns the entry of rows [first, first+n) of the outermost dimension; it shares Data, so that a rank that owns
// a slice of a matrix widens only that. It is an error when there are no such rows or when a row is not a whole number
// of blocks.
func (e Entry) Rows(first, n int) (Entry, error) {
	if len(e.Shape) == 0 || first < 0 || n < 0 || n > e.Shape[0]-first {
		return Entry{}, fmt.Errorf("tensor %q: shape %v has no rows [%d, %d)", e.Name, e.Shape, first, first+n)
	}
	block, size := e.Type.Block()
	row := e.Len() / max(e.Shape[0], 1)
	if row%block != 0 {
		return Entry{}, fmt.Errorf("tensor %q: rows of %d elements cut the blocks of %d of %s; "+
			"widen the whole tensor instead", e.Name, row, block, e.Type)
	}
	bytes := row / block * size
	e.Shape = append([]int{n}, e.Shape[1:]...)
	e.Data = e.Data[first*bytes:][: n*bytes : n*bytes]
	return e, nil
}

// Matrix gives the entry as a weight of n rows and k columns. Plain floats are viewed without copying; everything else
// is widened to d (f32, bf16 or f16). The shape may be any with n*k elements whose leading dimensions make n, e.g. [N,
// C, KY, KX] as [N, C*KY*KX].
func (e Entry) Matrix(n, k int, d engine.DType) (engine.Matrix, error) {
	split, rows := n == 1 || k == 1, 1 // a vector is one row or one column
	for _, s := range e.Shape {
		split = split || rows == n
		rows *= s
	}
	if n < 0 || k < 0 || e.Len() != n*k || !(split || rows == n) {
		return engine.Matrix{}, fmt.Errorf("tensor %q: shape %v is not a matrix [%d, %d]", e.Name, e.Shape, n, k)
	}
	switch e.Type {
	case F32, F16, BF16:
		d, _ = e.DType()
	case I8, I16, I32, I64, F64:
		return engine.Matrix{}, fmt.Errorf("tensor %q: type %s is not a weight type", e.Name, e.Type)
	}
	data, err := e.Bytes(d)
	if err != nil {
		return engine.Matrix{}, err
	}
	return engine.Matrix{Data: data, DType: d, N: n, K: k}, nil
}

// layout returns the storage of the entry, which must be one that can be widened.
func (e Entry) layout() (layout, error) {
	l := lookup(e.Type)
	if l.widen == nil {
		return l, fmt.Errorf("tensor %q: type %s cannot be widened "+
			"(allowed: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K)", e.Name, e.Type)
	}
	return l, nil
}
