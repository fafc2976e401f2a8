package array_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
)

func TestCheck(t *testing.T) {
	for want, v := range map[string]*array.Tensor{
		"":                             {DType: "bf16", Shape: []int{2, 3}, Data: make([]byte, 12)},
		"dtype \"f64\"":                {DType: "f64", Shape: []int{1}, Data: make([]byte, 8)},
		"9 dimensions":                 {DType: "u8", Shape: make([]int, 9)},
		"shape [-1]":                   {DType: "u8", Shape: []int{-1}},
		"needs 16 bytes, got 15":       {DType: "i64", Shape: []int{2}, Data: make([]byte, 15)},
		"needs 4 bytes, got 0":         {DType: "f32", Shape: []int{}},
		"larger than 1073741824":       {DType: "u8", Shape: []int{1 << 30, 2}},
		"[2147483648 2147483648 4]":    {DType: "f32", Shape: []int{1 << 31, 1 << 31, 4}}, // the product is 2^64
		"needs 0 bytes, got 1":         {DType: "f32", Shape: []int{math.MaxInt, 0}, Data: []byte{1}},
		strings.Repeat("x", 200) + `"`: {DType: strings.Repeat("x", 1000), Shape: []int{1}},
	} {
		if err := v.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestNewIsLittleEndian(t *testing.T) {
	v := array.New([]float32{1, -2}, 1, 2)
	if want := []byte{0, 0, 128, 63, 0, 0, 0, 192}; !slices.Equal(v.Data, want) || v.DType != "f32" || v.Check() != nil {
		t.Errorf("got %+v, want data %v", v, want)
	}
	text, err := json.Marshal(v)
	if want := `{"$tensor":{"data":"AACAPwAAAMA=","dtype":"f32","shape":[1,2]}}`; string(text) != want || err != nil {
		t.Errorf("got %s %v, want %s", text, err, want)
	}
}

// TestOfIsNoCopy checks that Of finds the tensor inside of a message's, the same and not a copy.
func TestOfIsNoCopy(t *testing.T) {
	inMessage := &struct {
		array.Tensor
		Hash string
	}{Tensor: *array.New([]float32{1}, 1)}
	if got, ok := array.Of(inMessage); !ok || got != &inMessage.Tensor {
		t.Errorf("got %p, want %p", got, &inMessage.Tensor)
	}
	if got, ok := array.Of(&inMessage.Tensor); !ok || got != &inMessage.Tensor {
		t.Errorf("got %p, want %p", got, &inMessage.Tensor)
	}
	for _, v := range []any{nil, "x", inMessage.Tensor} {
		if got, ok := array.Of(v); ok {
			t.Errorf("%T holds %v", v, got)
		}
	}
}
