package gguf

import (
	"fmt"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int         // row-major like torch, i.e. the file's dimensions reversed; empty for a scalar
	Data  datafile.Span // elements or blocks in row-major order, little-endian, readable until File.Close
}

// Len returns the number of elements.
func (e Tensor) Len() int {
	n := 1
	for _, s := range e.Shape {
		n *= s
	}
	return n
}

// DType returns the engine's name of the type when the elements are stored as the engine computes with them, so that
// Data can be used directly (f32, f16, bf16, f64, i32, i64). It returns false for quantized and other types.
func (e Tensor) DType() (engine.DType, bool) {
	d, ok := map[Type]engine.DType{
		F32: engine.F32, F16: engine.F16, BF16: engine.BF16, F64: engine.F64, I32: engine.I32, I64: engine.I64,
	}[e.Type]
	return d, ok
}

// layout returns the storage layout of the entry, or an error if its type cannot be widened.
func (e Tensor) layout() (layout, error) {
	l := lookup(e.Type)
	if l.widen == nil {
		return l, fmt.Errorf("tensor %q: type %s cannot be widened "+
			"(allowed: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K)", e.Name, e.Type)
	}
	return l, nil
}
