package ggufwrite

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
)

// TestWrittenFilesReadBack checks the quantizers with the reader, which is itself checked against the format's Python
// package: every value comes back within half a step of its group, or a whole step where scales are rounded too.
func TestWrittenFilesReadBack(t *testing.T) {
	values := make([]float32, 3*512)
	for i := range values {
		values[i] = float32(math.Sin(float64(i)*0.37) * (1 + float64(i%97)/97))
	}
	for kind, bound := range map[gguf.Type]float64{
		gguf.F32: 0, gguf.F16: 1e-3, gguf.BF16: 8e-3, gguf.Q8v0: 9e-3,
		gguf.Q4v0: 0.16, gguf.Q4K: 0.16, gguf.Q5K: 0.09, gguf.Q6K: 0.05,
	} {
		for _, shape := range [][]int{{3, 512}, {48, 32}, {96, 4, 2, 2}, {1536}} {
			f, err := gguf.OpenBytes(File(map[string]any{
				"general.architecture": "flux", "n": uint32(7), "yes": true,
				"f": float32(0.5), "names": []string{"a", ""}, "bytes": []uint8{1, 2},
			},
				[]Tensor{
					{"w", kind, shape, Quantise(kind, values)},
					{"x", gguf.F32, []int{3}, Quantise(gguf.F32, []float32{1, 2, 3})},
				}))
			if err != nil {
				t.Fatal(err)
			}
			e, _ := f.Entry("w")
			got := make([]float32, e.Len())
			engine.Widen(got, Widen(e, engine.F32), engine.F32)
			if !slices.Equal(e.Shape, shape) {
				t.Fatalf("%s: shape %v, want %v", kind, e.Shape, shape)
			}
			worst, at := 0.0, 0
			for i := range got {
				if d := math.Abs(float64(got[i] - values[i])); d > worst || d != d {
					worst, at = d, i
				}
			}
			if !(worst <= bound) {
				t.Errorf("%s: element %d is %g, want %g; error %g, bound %g", kind, at, got[at], values[at], worst, bound)
			}
			last, _ := f.Entry("x")
			if b := Widen(last, engine.F32); !bytes.Equal(b, Quantise(gguf.F32, []float32{1, 2, 3})) {
				t.Errorf("%s: the tensor behind it is %x", kind, b)
			}
			if f.Metadata()["general.architecture"] != "flux" || f.Metadata()["n"] != uint32(7) || f.Metadata()["yes"] != true ||
				f.Metadata()["f"] != float32(0.5) {
				t.Errorf("metadata: %v", f.Metadata())
			}
		}
	}
}
