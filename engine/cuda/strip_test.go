//go:build cgo && fakegpu

package cuda

import (
	"testing"

	"patchbay/engine"
)

// TestStrips checks convolutions in strips of a few lines and attention in strips of a few queries against ref.
func TestStrips(t *testing.T) {
	o := openOps(t)
	for _, strip := range []int{1, 5000, 20000} {
		o.strip = strip
		compare(t, o, 1.0/128, func(m *bench) engine.Tensor {
			x, y, res := m.normal(engine.BF16, 2, 9, 8, 16), m.normal(engine.BF16, 2, 9, 8, 24),
				m.normal(engine.BF16, 2, 9, 8, 24)
			w := &engine.Weight{Name: "w", Base: m.weight(engine.BF16, 24, 9*16), Bias: m.normal(engine.F32, 24)}
			w.Adapters = []engine.Adapter{{Down: m.weight(engine.BF16, 4, 9*16), Up: m.weight(engine.BF16, 24, 4), Scale: 1}}
			m.ops.Conv2D(y, x, w, engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Top: 1, Bottom: 1, Left: 1, Right: 1, Residual: res})
			return y
		})
		compare(t, o, 1.0/64, func(m *bench) engine.Tensor {
			q, k, out := m.normal(engine.BF16, 2, 37, 1, 512), m.normal(engine.BF16, 2, 50, 1, 512),
				m.normal(engine.BF16, 2, 37, 1, 512)
			m.ops.Attention(out, q, k, k, engine.AttentionArgs{LSE: m.normal(engine.F32, 2, 1, 37)})
			return out
		})
	}
}
