//go:build cgo

package cpu

import (
	"math"
	"testing"

	"patchbay/engine"
	"patchbay/tests/race"
)

// The conformance suite uses small shapes. These are large enough for several passes over a panel, several tasks and
// several groups of heads. Selected results are compared with f64 sums.

// pick calls f with count positions in [0, n), including the first and the last.
func pick(n, count int, f func(i int)) {
	for i := range count {
		f(i * (n - 1) / max(1, count-1))
	}
}

func checkClose(t *testing.T, what string, at int, got float32, want, bound float64) {
	t.Helper()
	if err := math.Abs(float64(got) - want); !(err <= bound) {
		t.Fatalf("%s: element %d: got %g, want %g, error %.3g, bound %.3g", what, at, got, want, err, bound)
	}
}

func TestLargeLinear(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestEachCallsEveryTaskOnce has the goroutines of all operations")
	}
	for _, s := range []struct{ m, n, k, r int }{
		{301, 100, 5000, 5},
		{1, 333, 4100, 0},
		{130, 1300, 70, 3},
		{17, 40, 2500, 40},
		{33, 70, 13000, 2},
	} {
		x, base := noise(s.m*s.k, 1), noise(s.n*s.k, 7)
		down, up := noise(s.r*s.k, 9), noise(s.n*s.r, 11)
		inner := make([]float64, s.m*s.r)
		for i := range inner {
			inner[i] = dot(x[i/s.r*s.k:], down[i%s.r*s.k:], s.k)
		}
		eachLevel(t, 3, func(t *testing.T, o *Ops) {
			w := packNoise(t, o, engine.F32, s.n, s.k, 0)
			if s.r > 0 {
				w.Adapters = []engine.Adapter{
					{Down: packed(t, o, down, s.r, s.k), Up: packed(t, o, up, s.n, s.r), Scale: 0.5},
					{Down: packed(t, o, down, s.r, s.k), Up: packed(t, o, up, s.n, s.r), Scale: 0.25},
				}
			}
			y := make([]float32, s.m*s.n)
			o.Linear(engine.FromF32(y, s.m, s.n), engine.FromF32(x, s.m, s.k), w, engine.Epilogue{})
			pick(len(y), 997, func(i int) {
				row, col := i/s.n, i%s.n
				want := dot(x[row*s.k:], base[col*s.k:], s.k)
				for r := range s.r {
					want += 0.75 * inner[row*s.r+r] * float64(up[col*s.r+r])
				}
				checkClose(t, "Linear", i, y[i], want, 2e-6*float64(s.k))
			})
		})
	}
}

func dot(a, b []float32, n int) float64 {
	sum := 0.0
	for i := range n {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func packed(t *testing.T, o *Ops, v []float32, n, k int) *engine.Packed {
	t.Helper()
	p, err := o.Pack(engine.Matrix{Data: engine.FromF32(v, n*k).Buf.Host, N: n, K: k}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLargeConv(t *testing.T) {
	for _, s := range []struct{ size, c, n, stride int }{
		{37, 200, 40, 1},
		{41, 150, 70, 2},
		{70, 20, 3, 3},
		{9, 800, 40, 1},
	} {
		x, weight := noise(s.size*s.size*s.c, 1), noise(s.n*9*s.c, 7)
		a := engine.ConvArgs{KY: 3, KX: 3, Stride: s.stride, Top: 1, Left: 1, Bottom: 1, Right: 1}
		out := (s.size+2-3)/s.stride + 1
		eachLevel(t, 3, func(t *testing.T, o *Ops) {
			w := packNoise(t, o, engine.F32, s.n, 9*s.c, s.c)
			y := make([]float32, out*out*s.n)
			o.Conv2D(engine.FromF32(y, 1, out, out, s.n), engine.FromF32(x, 1, s.size, s.size, s.c), w, a)
			pick(len(y), 499, func(i int) {
				oy, ox, col := i/s.n/out, i/s.n%out, i%s.n
				want := 0.0
				for tap := range 9 {
					iy, ix := oy*s.stride+tap/3-1, ox*s.stride+tap%3-1
					if iy >= 0 && iy < s.size && ix >= 0 && ix < s.size {
						want += dot(x[(iy*s.size+ix)*s.c:], weight[col*9*s.c+tap*s.c:], s.c)
					}
				}
				checkClose(t, "Conv2D", i, y[i], want, 2e-6*float64(9*s.c))
			})
		})
	}
}

func TestLargeAttention(t *testing.T) {
	for _, s := range []struct {
		l, h, d int
		causal  bool
	}{{700, 2, 72, false}, {650, 1, 40, true}, {1300, 3, 16, false}} {
		qkv := noise(3*s.l*s.h*s.d, 5)
		row := func(which, l, h int) []float32 { return qkv[((l*3+which)*s.h+h)*s.d:] }
		eachLevel(t, 3, func(t *testing.T, o *Ops) {
			in := engine.FromF32(qkv, 1, s.l, 3, s.h, s.d)
			out := make([]float32, s.l*s.h*s.d)
			o.Attention(engine.FromF32(out, 1, s.l, s.h, s.d), in.Index(2, 0), in.Index(2, 1), in.Index(2, 2),
				engine.AttentionArgs{Scale: 2, Causal: s.causal})
			pick(s.l*s.h, 41, func(i int) {
				l, h := i/s.h, i%s.h
				want, sum := make([]float64, s.d), 0.0
				for j := range s.l {
					if s.causal && j > l {
						break
					}
					p := math.Exp(2 * dot(row(0, l, h), row(1, j, h), s.d))
					sum += p
					for d := range s.d {
						want[d] += p * float64(row(2, j, h)[d])
					}
				}
				for d := range s.d {
					checkClose(t, "Attention", i*s.d+d, out[i*s.d+d], want[d]/sum, 1e-5)
				}
			})
		})
	}
}

// TestActivationPrecision compares with f64 over the range where the functions change. The bound is relative to the
// result, plus an absolute part for results near zero.
func TestActivationPrecision(t *testing.T) {
	var x []float32
	for v := -12.0; v <= 12; v += 0.0007 {
		x = append(x, float32(v))
	}
	logistic := func(v, u float64) float64 { return v / (1 + math.Exp(-u)) }
	eachLevel(t, 1, func(t *testing.T, o *Ops) {
		for act, f := range map[engine.Act]func(float64) float64{
			engine.GELUTanh:  func(v float64) float64 { return logistic(v, 2*math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)) },
			engine.GELUErf:   func(v float64) float64 { return 0.5 * v * math.Erfc(-v/math.Sqrt2) },
			engine.SiLU:      func(v float64) float64 { return logistic(v, v) },
			engine.QuickGELU: func(v float64) float64 { return logistic(v, 1.702*v) },
			engine.ReLU:      func(v float64) float64 { return max(v, 0) },
			engine.Sigmoid:   func(v float64) float64 { return logistic(1, v) },
		} {
			y := make([]float32, len(x))
			o.Activate(engine.FromF32(y, len(x)), engine.FromF32(x, len(x)), act)
			for i, v := range x {
				want := f(float64(v))
				checkClose(t, "Activate", i, y[i], want, 1e-6*math.Abs(want)+3e-8)
			}
		}
	})
}
