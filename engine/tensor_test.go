package engine

import (
	"fmt"
	"slices"
	"testing"
)

// elements lists the values of a host f32 view in row-major order, by strides alone.
func elements(t Tensor) []float32 {
	raw := FromF32(make([]float32, 0), 0)
	raw.Buf, raw.shape[0] = t.Buf, len(t.Buf.Host)/4
	all := raw.F32()
	var out []float32
	for i := range t.Len() {
		off, rest := t.Off, i
		for d := t.Dims() - 1; d >= 0; d-- {
			off += rest % t.Dim(d) * t.Stride(d)
			rest /= t.Dim(d)
		}
		out = append(out, all[off])
	}
	return out
}

// counting returns a tensor whose elements are 0, 1, 2, ...
func counting(shape ...int) Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i)
	}
	return FromF32(v, shape...)
}

func TestViews(t *testing.T) {
	for _, c := range []struct {
		name  string
		view  Tensor
		shape []int
		want  []float32
	}{
		{"slice of rows", counting(3, 2).Slice(0, 1, 3), []int{2, 2}, []float32{2, 3, 4, 5}},
		{"slice of columns", counting(2, 3).Slice(-1, 1, 2), []int{2, 1}, []float32{1, 4}},
		{"index in the middle", counting(2, 3, 2).Index(1, 1), []int{2, 2}, []float32{2, 3, 8, 9}},
		{"index of the last", counting(2, 3).Index(-1, 2), []int{2}, []float32{2, 5}},
		{"split", counting(2, 6).Split(1, 3, 2).Index(1, 2), []int{2, 2}, []float32{4, 5, 10, 11}},
		{
			"split of strided", counting(2, 8).Slice(1, 0, 4).Split(1, 2, 2),
			[]int{2, 2, 2},
			[]float32{0, 1, 2, 3, 8, 9, 10, 11},
		},
		{"merge", counting(2, 2, 3).Merge(-2), []int{2, 6}, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{"merge of strided rows", counting(2, 3, 2).Slice(1, 1, 2).Merge(0), []int{2, 2}, []float32{2, 3, 8, 9}},
		{"transpose", counting(2, 3).Transpose(0, 1), []int{3, 2}, []float32{0, 3, 1, 4, 2, 5}},
		{"unsqueeze", counting(2, 2).Unsqueeze(1), []int{2, 1, 2}, []float32{0, 1, 2, 3}},
		{"unsqueeze at the end", counting(2).Unsqueeze(1), []int{2, 1}, []float32{0, 1}},
		{"broadcast", counting(1, 2).Broadcast(0, 3), []int{3, 2}, []float32{0, 1, 0, 1, 0, 1}},
		{"empty", counting(3, 2).Slice(0, 3, 3), []int{0, 2}, nil},
	} {
		if got := c.view.Shape(); !slices.Equal(got, c.shape) {
			t.Errorf("%s: shape: got %v, want %v", c.name, got, c.shape)
		}
		if got := elements(c.view); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestContiguous(t *testing.T) {
	for name, c := range map[string]struct {
		view Tensor
		want bool
	}{
		"whole":                    {counting(2, 3), true},
		"rows":                     {counting(4, 3).Slice(0, 1, 3), true},
		"columns":                  {counting(4, 3).Slice(1, 1, 3), false},
		"one row of columns":       {counting(1, 3).Slice(1, 1, 3), true},
		"transposed":               {counting(2, 3).Transpose(0, 1), false},
		"transposed row":           {counting(1, 3).Transpose(0, 1), true},
		"repeated":                 {counting(1, 3).Broadcast(0, 2), false},
		"without elements":         {counting(4, 3).Slice(1, 1, 1), true},
		"second of packed rows":    {counting(4, 3, 2).Index(1, 1), false},
		"second of one packed row": {counting(1, 3, 2).Index(1, 1), true},
	} {
		if got := c.view.Contiguous(); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestTensorMisuse(t *testing.T) {
	for name, f := range map[string]func(){
		"too many dimensions":  func() { NewTensor(Buf{}, F32, 1, 1, 1, 1, 1, 1) },
		"negative dimension":   func() { NewTensor(Buf{}, F32, 2, -1) },
		"buffer too small":     func() { NewTensor(Buf{Host: make([]byte, 7)}, F32, 2) },
		"slice beyond the end": func() { counting(3).Slice(0, 1, 4) },
		"slice backwards":      func() { counting(3).Slice(0, 2, 1) },
		"index beyond the end": func() { counting(3).Index(0, 3) },
		"split":                func() { counting(2, 5).Split(1, 2, 2) },
		"merge of strided":     func() { counting(2, 4).Slice(1, 0, 2).Merge(0) },
		"merge of the last":    func() { counting(2, 4).Merge(1) },
		"broadcast of 2":       func() { counting(2).Broadcast(0, 4) },
		"unsqueeze of 5":       func() { counting(1, 1, 1, 1, 1).Unsqueeze(0) },
		"F32 of bf16":          func() { NewTensor(Buf{Host: make([]byte, 8)}, BF16, 4).F32() },
		"F32 of strided":       func() { counting(2, 3).Transpose(0, 1).F32() },
	} {
		if recovered(f) == nil {
			t.Errorf("%s: no *ShapeError", name)
		}
	}
}

func TestStrings(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"f32[2 3]":       counting(2, 3),
		"f32[3 2]/[1 3]": counting(2, 3).Transpose(0, 1),
		"none":           Tensor{},
		"bf16":           BF16,
		"f8_e4m3":        F8E4M3,
		"dtype(99)":      DType(99),
	} {
		if got.String() != want {
			t.Errorf("got %q, want %q", got.String(), want)
		}
	}
}
