//go:build cgo && fakegpu

package cuda

import (
	"fmt"
	"testing"

	"patchbay/engine"
)

// TestEveryTile compares shapes that fill and overhang every kernel's tile with ref, some with adapters or with rows
// that cannot be copied in 16-byte pieces. The number of multiprocessors makes kernelFor choose the kernel.
func TestEveryTile(t *testing.T) {
	o := openOps(t)
	for _, c := range []struct {
		kernel          kernel
		processors      int
		weight          engine.DType
		batch, rows, n  int
		k, gap, adapter int
	}{
		{kLinear256, 1, engine.BF16, 1, 150, 300, 100, 0, 0},
		{kLinear256, 1, engine.BF16, 2, 70, 256, 64, 8, 5},
		{kLinear256, 1, engine.BF16, 1, 129, 257, 33, 1, 0},
		{kLinear128, 4, engine.BF16, 1, 150, 160, 100, 0, 12},
		{kLinear128, 4, engine.BF16, 3, 67, 131, 40, 3, 0},
		{kLinear64, 99, engine.BF16, 1, 65, 129, 100, 0, 4},
		{kLinear64, 99, engine.BF16, 2, 33, 64, 160, 0, 0},
		{kLinearF16, 1, engine.F16, 1, 130, 140, 72, 0, 9},
	} {
		t.Run(fmt.Sprintf("%s/%d %d %d %d gap %d", kernels[c.kernel].name, c.batch, c.rows, c.n, c.k, c.gap),
			func(t *testing.T) {
				o.dev.Multiprocessors = c.processors
				l := left{batch: c.batch, rows: c.rows, dtype: engine.BF16}
				if got := o.kernelFor(l, c.weight, c.n); got != c.kernel {
					t.Fatalf("kernel %s is chosen", kernels[got].name)
				}
				compare(t, o, 1.0/128, func(m *bench) engine.Tensor {
					x := m.normal(engine.BF16, c.batch, c.rows, c.k+c.gap).Slice(2, 0, c.k)
					y := m.normal(engine.BF16, c.batch, c.rows, c.n)
					w := &engine.Weight{Name: "w", Base: m.weight(c.weight, c.n, c.k), Bias: m.normal(engine.F32, c.n)}
					if c.adapter > 0 {
						w.Adapters = []engine.Adapter{
							{Down: m.weight(engine.BF16, c.adapter, c.k), Up: m.weight(engine.BF16, c.n, c.adapter), Scale: 0.5},
							{Down: m.weight(engine.F16, 3, c.k), Up: m.weight(engine.F32, c.n, 3), Scale: -1},
						}
					}
					m.ops.Linear(y, x, w, engine.Epilogue{Act: engine.GELUTanh, Residual: y, Gate: m.normal(engine.F32, c.batch, c.n)})
					return y
				})
			})
	}
}

// TestFactorsOnTheHost checks that a left factor in host memory is refused with an error that names the call.
func TestFactorsOnTheHost(t *testing.T) {
	o := openOps(t)
	m := &bench{t: t, ops: o, rng: newRand()}
	x, y := engine.FromF32(make([]float32, 16), 1, 1, 1, 16), m.normal(engine.F32, 1, 1, 1, 16)
	w := &engine.Weight{Base: m.weight(engine.F32, 16, 16)}
	for op, call := range map[string]func(){
		"Linear": func() { o.Linear(y.Index(0, 0), x.Index(0, 0), w, engine.Epilogue{}) },
		"Conv2D": func() { o.Conv2D(y, x, w, engine.ConvArgs{KY: 1, KX: 1, Stride: 1}) },
	} {
		func() {
			defer func() {
				if e, ok := recover().(*engine.ShapeError); !ok || e.Op != op {
					t.Errorf("%s: recovered %v", op, e)
				}
			}()
			call()
		}()
	}
	m.free()
}

// TestRoundedWeights checks that products that round f16 weights to bf16 are counted and those in f32 are not.
func TestRoundedWeights(t *testing.T) {
	o := openOps(t)
	m := &bench{t: t, ops: o, rng: newRand()}
	w := &engine.Weight{Base: m.weight(engine.F16, 16, 16)}
	for _, d := range []engine.DType{engine.BF16, engine.F32} {
		o.Linear(m.normal(d, 20, 16), m.normal(d, 20, 16), w, engine.Epilogue{})
	}
	if n := o.Chosen()["products that lose 3 bits of f16"]; n != 1 {
		t.Errorf("%d products, want 1", n)
	}
	m.free()
}
