package layers

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/dit"
)

// counting counts what is computed.
type counting struct {
	engine.Ops
	fills, residuals int
}

func (c *counting) Fill(y engine.Tensor, v float32) {
	c.fills++
	c.Ops.Fill(y, v)
}

func (c *counting) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	if !e.Residual.IsZero() {
		c.residuals++
	}
	c.Ops.Linear(y, x, w, e)
}

// TestRowProduct checks that a whole weight's product is written over y, without a pass that clears y and one that
// reads it, and that the parts of two ranks give the same.
func TestRowProduct(t *testing.T) {
	ops := ref.New()
	tensor := func(values []float32, shape ...int) engine.Tensor {
		out := engine.NewTensor(engine.Buf{Host: make([]byte, 4*len(values))}, engine.F32, shape...)
		ops.Upload(out, values)
		return out
	}
	pack := func(values []float32, n, k int) *engine.Packed {
		data := make([]byte, 4*len(values))
		engine.Narrow(data, values, engine.F32)
		p, err := ops.Pack(engine.Matrix{Data: data, DType: engine.F32, N: n, K: k}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	bias := tensor([]float32{10, 20}, 2)
	want := []float32{10 + 1*1 + 2*2, 20 + 3*1 + 4*2} // weight ((1 2) (3 4)), a (1 2)
	for name, split := range map[string]bool{"whole": false, "two ranks": true} {
		c := &counting{Ops: ops}
		env := dit.Env{Ops: c, Arena: &engine.Arena{}}
		y := tensor([]float32{7, 7}, 1, 1, 2)
		a, w := tensor([]float32{1, 2}, 1, 1, 2), &engine.Weight{Base: pack([]float32{1, 2, 3, 4}, 2, 2), Bias: bias}
		if split {
			buf, err := ops.Alloc(1 << 10)
			if err != nil {
				t.Fatal(err)
			}
			env.Arena = engine.NewArena("test", buf, 1<<10)
			a, w = tensor([]float32{1}, 1, 1, 1), &engine.Weight{Base: pack([]float32{1, 3}, 2, 1), Bias: bias}
			other := tensor([]float32{2 * 2, 4 * 2}, 1, 1, 2)
			env.Reduce = func(part engine.Tensor) { ops.GatedAdd(part, part, engine.Tensor{}, other, engine.Tensor{}) }
		}
		RowProduct(env, y, a, w, dit.Rows{Image: dit.Range{End: 1}})
		got := make([]float32, 2)
		if err := ops.Download(got, y).Wait(); err != nil || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("%s: %v (%v), want %v", name, got, err, want)
		}
		if !split && c.fills+c.residuals > 0 {
			t.Errorf("%s: %d fills and %d residuals, want none", name, c.fills, c.residuals)
		}
	}
}
