// Package array has the one tensor of numbers in host memory: what messages carry and what nodes take and return. It
// imports no other package of the program, and all may use it.
package array

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Tensor is an array of numbers: row-major, little-endian.
type Tensor struct {
	DType string `json:"dtype"` // f32, f16, bf16, i64, u8
	Shape []int  `json:"shape"`
	Data  []byte `json:"data,omitempty"`
}

// MaxBytes bounds the data of a tensor.
const MaxBytes = 1 << 30

// Key marks a tensor in JSON: {"$tensor": {"dtype": "f32", "shape": [1, 2], "data": "<base64>"}}.
const Key = "$tensor"

// New copies f32 values into a Tensor. It panics if the shape does not match.
func New(v []float32, shape ...int) *Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	if n != len(v) {
		panic(fmt.Sprintf("tensor: %d values for shape %v", len(v), shape))
	}
	t := &Tensor{DType: "f32", Shape: shape, Data: make([]byte, 4*len(v))}
	for i, x := range v {
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(x))
	}
	return t
}

// Array returns t. A type that embeds a Tensor has this method too, by which Of finds the tensor.
func (t *Tensor) Array() *Tensor { return t }

// Of returns the tensor that v is, or holds beside what only a message knows, and whether there is one.
func Of(v any) (*Tensor, bool) {
	h, ok := v.(interface{ Array() *Tensor })
	if !ok {
		return nil, false
	}
	return h.Array(), true
}

// DTypeSize returns the bytes of one element, 0 for a dtype that is not known.
func DTypeSize(dtype string) int {
	return map[string]int{"f32": 4, "f16": 2, "bf16": 2, "i64": 8, "u8": 1}[dtype]
}

// Check returns an error if dtype, shape and length of the data do not match.
func (t *Tensor) Check() error { return t.CheckLength(len(t.Data)) }

// CheckLength is Check for a tensor whose data is elsewhere and has n bytes.
func (t *Tensor) CheckLength(n int) error {
	if DTypeSize(t.DType) == 0 {
		return fmt.Errorf("tensor has dtype %.200q; the dtypes are f32, f16, bf16, i64, u8", t.DType)
	}
	if len(t.Shape) > 8 {
		return fmt.Errorf("tensor has %d dimensions, the limit is 8", len(t.Shape))
	}
	if slices.ContainsFunc(t.Shape, func(d int) bool { return d < 0 }) {
		return fmt.Errorf("tensor has shape %v", t.Shape)
	}
	switch need := t.Bytes(); {
	case n > MaxBytes || need > MaxBytes:
		return fmt.Errorf("tensor of shape %v and dtype %s is larger than %d bytes", t.Shape, t.DType, MaxBytes)
	case n != need:
		return fmt.Errorf("tensor of shape %v and dtype %s needs %d bytes, got %d", t.Shape, t.DType, need, n)
	}
	return nil
}

// Bytes returns the size of the data by dtype and shape, which must not be negative; for more than MaxBytes it is
// MaxBytes + 1. It compares by division, so that the product cannot overflow.
func (t *Tensor) Bytes() int {
	if slices.Contains(t.Shape, 0) {
		return 0
	}
	n := DTypeSize(t.DType)
	for _, d := range t.Shape {
		if n > MaxBytes/d {
			return MaxBytes + 1
		}
		n *= d
	}
	return n
}

// MarshalJSON writes {"$tensor": {...}}.
func (t *Tensor) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{Key: map[string]any{"dtype": t.DType, "shape": t.Shape, "data": t.Data}})
}

// Packer is the writer below an encoder that knows how messages carry tensors.
type Packer interface {
	Tensor(enc *msgpack.Encoder, t *Tensor) error
}

// EncodeMsgpack has the Packer below the encoder write the tensor; there must be one.
func (t *Tensor) EncodeMsgpack(enc *msgpack.Encoder) error {
	return enc.Writer().(Packer).Tensor(enc, t) //nolint:forcetypeassert // a bug otherwise, as its comment says
}
