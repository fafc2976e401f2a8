package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	"patchbay/node/pyjson"
)

// extTensor is the msgpack extension type of a Tensor. Its payload is one msgpack map with dtype, shape, and data or
// ref.
const extTensor = 1

// TensorKey marks a tensor in JSON: {"$tensor": {"dtype": "f32", "shape": [1, 2], "data": "<base64>"}}.
const TensorKey = "$tensor"

// Tensor is an array of numbers in a message: row-major, little-endian, in Data. In a message that has just been read,
// the data may still be elsewhere (Ref).
type Tensor struct {
	DType string `json:"dtype"` // f32, f16, bf16, i64, u8
	Shape []int  `json:"shape"`
	Data  []byte `json:"data,omitempty"`
	Ref   *Ref   `json:"ref,omitempty"` // where the data is
}

// DTypeSize returns the bytes of one element, 0 for a dtype that messages do not carry.
func DTypeSize(dtype string) int {
	return map[string]int{"f32": 4, "f16": 2, "bf16": 2, "i64": 8, "u8": 1}[dtype]
}

// Check returns an error if dtype, shape and length of the data do not match.
func (t *Tensor) Check() error {
	if DTypeSize(t.DType) == 0 {
		return fmt.Errorf("tensor has dtype %q; the dtypes are f32, f16, bf16, i64, u8", Shown(t.DType))
	}
	if len(t.Shape) > 8 {
		return fmt.Errorf("tensor has %d dimensions, the limit is 8", len(t.Shape))
	}
	if slices.ContainsFunc(t.Shape, func(d int) bool { return d < 0 }) {
		return fmt.Errorf("tensor has shape %v", t.Shape)
	}
	have, need := len(t.Data), t.Bytes()
	switch {
	case t.Ref != nil && t.Data != nil:
		return fmt.Errorf("tensor has data and a ref")
	case t.Ref != nil:
		have = t.Ref.Bytes
	}
	switch {
	case have > MaxRegion || need > MaxRegion:
		return fmt.Errorf("tensor of shape %v and dtype %s is larger than %d bytes", t.Shape, t.DType, MaxRegion)
	case have != need:
		return fmt.Errorf("tensor of shape %v and dtype %s needs %d bytes, got %d", t.Shape, t.DType, need, have)
	}
	return nil
}

// Bytes returns the size of the data by dtype and shape, which must not be negative; for more than MaxRegion it is
// MaxRegion + 1. It compares by division, so that the product cannot overflow.
func (t *Tensor) Bytes() int {
	if slices.Contains(t.Shape, 0) {
		return 0
	}
	n := DTypeSize(t.DType)
	for _, d := range t.Shape {
		if n > MaxRegion/d {
			return MaxRegion + 1
		}
		n *= d
	}
	return n
}

// MarshalJSON writes {"$tensor": {...}}.
func (t *Tensor) MarshalJSON() ([]byte, error) {
	m := map[string]any{"dtype": t.DType, "shape": t.Shape}
	if t.Ref != nil {
		m["ref"] = t.Ref
	} else {
		m["data"] = t.Data
	}
	return json.Marshal(map[string]any{TensorKey: m})
}

// decodeExt reads an extension value; c is its first byte, p its payload with the type byte in front.
func decodeExt(c byte, p []byte, at int) (any, error) {
	if len(p) == 0 || int8(p[0]) != extTensor {
		return nil, fmt.Errorf("extension 0x%02x at byte %d has a type that is not known; the only one is %d, a tensor",
			c, at, extTensor)
	}
	body := p[1:]
	if err := Guard(body, Msgpack, Limits{Bytes: len(body), Depth: 3, Items: 48}); err != nil {
		return nil, fmt.Errorf("tensor at byte %d: %w", at, err)
	}
	d := mpReader{b: body}
	v, err := d.value()
	if err != nil {
		return nil, fmt.Errorf("tensor at byte %d: %w", at, err)
	}
	return tensorOf(v)
}

func tensorOf(v any) (*Tensor, error) {
	o, ok := v.(*pyjson.Object)
	if !ok {
		return nil, fmt.Errorf("a tensor is a map {dtype, shape, data}, got %s", KindOf(v))
	}
	if _, ok := o.Get("hash"); ok {
		return nil, fmt.Errorf("tensor: hash: tensors are no longer kept by their hash; send data or ref with every message")
	}
	t := &Tensor{}
	if err := Bind(o, t); err != nil {
		return nil, fmt.Errorf("tensor: %w", err)
	}
	if t.Ref != nil {
		if err := t.Ref.check(); err != nil {
			return nil, fmt.Errorf("tensor: %w", err)
		}
	}
	return t, t.Check()
}

// tensorsOfJSON replaces every {"$tensor": ...} of a decoded JSON tree, in place.
func tensorsOfJSON(v any) (any, error) {
	if x, ok := v.(*pyjson.Object); ok && x.Len() == 1 {
		if t, ok := x.Get(TensorKey); ok {
			return tensorOf(t)
		}
	}
	return pyjson.Replace(v, tensorsOfJSON)
}

// decodeBase64 reads the text form of bytes in JSON.
func decodeBase64(s string) ([]byte, error) { return base64.StdEncoding.DecodeString(s) }
