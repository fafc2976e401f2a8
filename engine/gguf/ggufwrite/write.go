// Package ggufwrite makes GGUF files for tests: it has a writer of version 3 and simple quantizers of the common types.
//
// The quantizers derive the scale from the largest value of a group and round to the nearest step. Those of ggml search
// for better scales, which makes no difference to readers. No program writes GGUF files with this package.
package ggufwrite

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"patchbay/engine/gguf"
)

// Tensor is one tensor to write. Data holds its blocks (see Quantise).
type Tensor struct {
	Name  string
	Type  gguf.Type
	Shape []int // row-major, as gguf.Entry has it
	Data  []byte
}

// align is the format's alignment of tensor data for files without general.alignment.
const align = 32

// File returns a GGUF file. Metadata values may be string, bool, uint32, float32 and slices of string, int32, float32
// and uint8. A tensor whose rows are not whole blocks is written as converters of image models do it: as rows of one
// block, with its true shape under comfy.gguf.orig_shape.
func File(metadata map[string]any, tensors []Tensor) []byte {
	pairs := map[string]any{}
	maps.Copy(pairs, metadata)
	shapes := make([][]int, len(tensors))
	for i, t := range tensors {
		shapes[i] = t.Shape
		block, _ := t.Type.Block()
		if n := t.Shape[len(t.Shape)-1]; n%block != 0 {
			shapes[i] = []int{elements(t.Shape) / block, block}
			pairs["comfy.gguf.orig_shape."+t.Name] = int32s(t.Shape)
		}
	}
	b := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(pairs)))
	keys := make([]string, 0, len(pairs))
	for key := range pairs {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		b = value(text(b, key), pairs[key])
	}
	at := 0
	for i, t := range tensors {
		b = binary.LittleEndian.AppendUint32(text(b, t.Name), uint32(len(shapes[i])))
		for _, v := range slices.Backward(shapes[i]) { // the format stores the innermost dimension first
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Type))
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
		at += (len(t.Data) + align - 1) / align * align
	}
	b = pad(b)
	for _, t := range tensors {
		b = pad(append(b, t.Data...))
	}
	return b
}

func elements(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

func int32s(v []int) []int32 {
	out := make([]int32, len(v))
	for i := range v {
		out[i] = int32(v[i])
	}
	return out
}

func pad(b []byte) []byte { return append(b, make([]byte, (align-len(b)%align)%align)...) }

func text(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// list appends the head of an array of n elements of a kind.
func list(b []byte, kind, n int) []byte {
	b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, 9), uint32(kind))
	return binary.LittleEndian.AppendUint64(b, uint64(n))
}

// value appends the type and value of v. The type numbers are those of enum gguf_metadata_value_type.
func value(b []byte, v any) []byte {
	kind := func(k uint32) []byte { return binary.LittleEndian.AppendUint32(b, k) }
	switch x := v.(type) {
	case string:
		return text(kind(8), x)
	case bool:
		if x {
			return append(kind(7), 1)
		}
		return append(kind(7), 0)
	case uint32:
		return binary.LittleEndian.AppendUint32(kind(4), x)
	case float32:
		return binary.LittleEndian.AppendUint32(kind(6), math.Float32bits(x))
	case []string:
		b = list(b, 8, len(x))
		for _, s := range x {
			b = text(b, s)
		}
		return b
	case []int32:
		b = list(b, 5, len(x))
		for _, n := range x {
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		}
		return b
	case []float32:
		b = list(b, 6, len(x))
		for _, f := range x {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
		}
		return b
	case []uint8:
		return append(list(b, 0, len(x)), x...)
	}
	panic(fmt.Sprintf("ggufwrite: metadata of type %T", v))
}
