//go:build cgo && fakegpu

package cuda

import (
	"fmt"
	"math"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// weight8 packs a random 8-bit matrix and returns both.
func (m *bench) weight8(n, k, rotated int) (*engine.Packed, engine.Matrix) {
	m.t.Helper()
	w := engine.Matrix{
		Data: make([]byte, n*k), DType: engine.I8, N: n, K: k, Rotated: rotated, Scales: make([]float32, n),
	}
	for i := range w.Data {
		w.Data[i] = byte(m.rng.IntN(256))
	}
	for i := range w.Scales {
		w.Scales[i] = (1 + m.rng.Float32()) / 64 / float32(math.Sqrt(float64(k)))
	}
	p, err := m.ops.Pack(w, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.buf = append(m.buf, p.Buf)
	return p, w
}

// TestRoundedProducts compares products with int8 weights with ref through both tiles, rotated and not, with a full
// epilogue, and with adapters over a residual in place.
func TestRoundedProducts(t *testing.T) {
	o := openOps(t)
	for i, c := range []struct {
		processors, batch, rows, n, k, rotated, ranks int
		dtype                                         engine.DType
		added                                         bool
	}{
		{1, 1, 150, 300, 100, 4, 0, engine.BF16, true},
		{1, 2, 70, 256, 512, 256, 5, engine.BF16, true},
		{99, 3, 23, 131, 40, 0, 7, engine.BF16, false},
		{99, 1, 65, 129, 100, 0, 3, engine.F32, true},
		{99, 1, 3, 64, 8192, 4096, 0, engine.BF16, false},
		{99, 1, 5, 40, 4160, 64, 2, engine.F32, false},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			o.dev.Multiprocessors = c.processors
			compare(t, o, 1.0/128, func(m *bench) engine.Tensor {
				x, y := m.normal(c.dtype, c.batch, c.rows, c.k+1).Slice(2, 0, c.k), m.normal(c.dtype, c.batch, c.rows, c.n)
				p, _ := m.weight8(c.n, c.k, c.rotated)
				w := &engine.Weight{Name: "w", Base: p, Bias: m.normal(engine.F32, c.n)}
				if c.ranks > 0 {
					w.Adapters = []engine.Adapter{
						{Down: m.weight(engine.BF16, c.ranks, c.k), Up: m.weight(engine.BF16, c.n, c.ranks), Scale: 0.5},
					}
				}
				e := engine.Epilogue{Act: engine.GELUTanh, Gate: m.normal(engine.F32, c.batch, c.n)}
				if c.added {
					e.Residual = y
				}
				m.ops.Linear(y, x, w, e)
				return y
			})
		})
	}
}

// TestRoundedExactly checks that, without an epilogue, results equal those of the formula to the last bit, and that a
// row with an infinity is NaN.
func TestRoundedExactly(t *testing.T) {
	o := openOps(t)
	const rows, n, k, bad = 9, 24, 320, 4
	for _, rotated := range []int{0, 64} {
		for _, dtype := range []engine.DType{engine.F32, engine.BF16} {
			m := &bench{t: t, ops: o, rng: newRand()}
			x, y := engine.NewTensor(m.normal(dtype, rows, k).Buf, dtype, rows, k), m.normal(dtype, rows, n)
			values := m.numbers(rows*k, 3)
			values[bad*k+7] = float32(math.Inf(1))
			o.Upload(x, values)
			if err := o.Download(values, x).Wait(); err != nil { // rounded to dtype
				t.Fatal(err)
			}
			p, w := m.weight8(n, k, rotated)
			o.Linear(y, x, &engine.Weight{Base: p}, engine.Epilogue{})
			got := make([]float32, rows*n)
			if err := o.Download(got, y).Wait(); err != nil {
				t.Fatal(err)
			}
			q := make([]int8, k)
			for i := range rows {
				scale := ref.QuantiseRow(q, values[i*k:(i+1)*k], rotated, dtype == engine.BF16)
				for j := range n {
					sum := int32(0)
					for c, v := range q {
						sum += int32(v) * int32(int8(w.Data[j*k+c]))
					}
					want := float32(sum) * (scale * w.Scales[j])
					if dtype == engine.BF16 {
						want = engine.F32FromBF16(engine.BF16FromF32(want))
					}
					if g := got[i*n+j]; g != want && !(i == bad && math.IsNaN(float64(g))) || i == bad && g == g {
						t.Fatalf("rotated %d, %s: row %d, feature %d: got %g, want %g", rotated, dtype, i, j, g, want)
					}
				}
			}
			m.free()
		}
	}
}

// TestRoundedKeepsItsBytes checks that int8 weights take one byte per element on the device, and 16 more per row.
func TestRoundedKeepsItsBytes(t *testing.T) {
	o := openOps(t)
	m := &bench{t: t, ops: o, rng: newRand()}
	p, _ := m.weight8(10, 100, 0)
	if p.DType != engine.I8 || p.Bytes != 10*(112+16) {
		t.Errorf("%s in %d bytes, want i8 in 1280", p.DType, p.Bytes)
	}
	m.free()
}
