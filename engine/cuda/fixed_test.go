//go:build cgo && fakegpu

package cuda

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/engine"
)

// TestFixedSums checks that, after Fix, a row of a product and a query of attention have the same bits whatever other
// rows the call has. Without Fix these shapes use different kernels, which shows in the bits unless weights are bf16.
func TestFixedSums(t *testing.T) {
	o := openOps(t)
	o.dev.Multiprocessors = 4
	cuts := [][]int{{0, 150}, {0, 5, 13, 90, 150}}
	for _, c := range []struct{ x, weight engine.DType }{
		{engine.BF16, engine.BF16},
		{engine.BF16, engine.F16},
		{engine.F32, engine.BF16},
		{engine.F32, engine.F32},
	} {
		pieces := func(cut []int) []float32 {
			return results(t, o, func(m *bench) engine.Tensor {
				x, y := m.normal(c.x, 150, 104), m.normal(c.x, 150, 136)
				w := &engine.Weight{Name: "w", Base: m.weight(c.weight, 136, 104), Bias: m.normal(engine.F32, 136)}
				w.Adapters = []engine.Adapter{{Down: m.weight(engine.BF16, 6, 104), Up: m.weight(engine.BF16, 136, 6), Scale: 0.5}}
				for i, from := range cut[:len(cut)-1] {
					rows := y.Slice(0, from, cut[i+1])
					m.ops.Linear(rows, x.Slice(0, from, cut[i+1]), w, engine.Epilogue{Act: engine.SiLU, Residual: rows})
				}
				return y
			})
		}
		t.Run(fmt.Sprintf("linear %s by %s", c.x, c.weight), func(t *testing.T) {
			o.Fix(true)
			if !slices.Equal(pieces(cuts[0]), pieces(cuts[1])) {
				t.Error("rows in pieces have other bits")
			}
			o.Fix(false)
			if c.weight != engine.BF16 && slices.Equal(pieces(cuts[0]), pieces(cuts[1])) {
				t.Error("rows in pieces have the same bits without Fix: the shapes test nothing")
			}
		})
		t.Run(fmt.Sprintf("attention %s", c.x), func(t *testing.T) {
			o.Fix(true)
			attend := func(cut []int) []float32 {
				return results(t, o, func(m *bench) engine.Tensor {
					q, y := m.normal(c.x, 1, 150, 2, 40), m.normal(c.x, 1, 150, 2, 40)
					k, v := m.normal(c.x, 1, 77, 2, 40), m.normal(c.x, 1, 77, 2, 40)
					for i, from := range cut[:len(cut)-1] {
						m.ops.Attention(y.Slice(1, from, cut[i+1]), q.Slice(1, from, cut[i+1]), k, v, engine.AttentionArgs{})
					}
					return y
				})
			}
			if !slices.Equal(attend(cuts[0]), attend(cuts[1])) {
				t.Error("queries in pieces have other bits")
			}
		})
	}
}
