//go:build cgo

package cpu

import (
	"math"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/tests/race"
)

// These are large products of bf16 with bf16: several passes over a panel, several tasks, odd numbers of channels and
// keys. Selected results are compared with f64 sums of the rounded operands.

// values returns the elements of a contiguous activation.
func values(t engine.Tensor) []float32 {
	v := make([]float32, t.Len())
	engine.Widen(v, t.Buf.Host, t.DType)
	return v
}

// rounded returns noise rounded to bf16.
func rounded(n int, seed uint32) []float32 { return values(tensor(engine.BF16, seed, n)) }

func TestLargeLinearBF16(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestEachCallsEveryTaskOnce has the goroutines of all operations")
	}
	for _, s := range [][3]int{{301, 100, 5000}, {1, 333, 4101}, {33, 70, 13001}, {130, 1300, 71}} {
		m, n, k := s[0], s[1], s[2]
		x, base := tensor(engine.BF16, 1, m, k), rounded(n*k, 7)
		rows := values(x)
		eachLevel(t, 3, func(t *testing.T, o *Ops) {
			y := tensor(engine.BF16, 2, m, n)
			o.Linear(y, x, packNoise(t, o, engine.BF16, n, k, 0), engine.Epilogue{})
			got := values(y)
			pick(len(got), 499, func(i int) {
				want := dot(rows[i/n*k:], base[i%n*k:], k)
				checkClose(t, "Linear", i, got[i], want, 2e-6*float64(k)+math.Abs(want)/250)
			})
		})
	}
}

func TestLargeConvBF16(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestEachCallsEveryTaskOnce has the goroutines of all operations")
	}
	for _, s := range []struct{ size, c, n, stride int }{{37, 200, 40, 1}, {41, 151, 70, 2}, {9, 1601, 40, 1}} {
		x, weight := tensor(engine.BF16, 1, 1, s.size, s.size, s.c), rounded(s.n*9*s.c, 7)
		in := values(x)
		a := engine.ConvArgs{KY: 3, KX: 3, Stride: s.stride, Top: 1, Left: 1, Bottom: 1, Right: 1}
		out := (s.size+2-3)/s.stride + 1
		eachLevel(t, 3, func(t *testing.T, o *Ops) {
			y := tensor(engine.BF16, 2, 1, out, out, s.n)
			o.Conv2D(y, x, packNoise(t, o, engine.BF16, s.n, 9*s.c, s.c), a)
			got := values(y)
			pick(len(got), 499, func(i int) {
				oy, ox, col := i/s.n/out, i/s.n%out, i%s.n
				want := 0.0
				for tap := range 9 {
					iy, ix := oy*s.stride+tap/3-1, ox*s.stride+tap%3-1
					if iy >= 0 && iy < s.size && ix >= 0 && ix < s.size {
						want += dot(in[(iy*s.size+ix)*s.c:], weight[col*9*s.c+tap*s.c:], s.c)
					}
				}
				checkClose(t, "Conv2D", i, got[i], want, 2e-6*float64(9*s.c)+math.Abs(want)/250)
			})
		})
	}
}

func TestLargeAttentionBF16(t *testing.T) {
	for _, s := range []struct {
		l, h, d int
		causal  bool
	}{{701, 2, 72, false}, {650, 1, 41, true}, {1300, 3, 16, false}} {
		qkv := tensor(engine.BF16, 5, 1, s.l, 3, s.h, s.d)
		all := values(qkv)
		row := func(which, l, h int) []float32 { return all[((l*3+which)*s.h+h)*s.d:] }
		eachLevel(t, 3, func(t *testing.T, o *Ops) {
			out := tensor(engine.BF16, 6, 1, s.l, s.h, s.d)
			o.Attention(out, qkv.Index(2, 0), qkv.Index(2, 1), qkv.Index(2, 2), engine.AttentionArgs{Scale: 1, Causal: s.causal})
			got := values(out)
			pick(s.l*s.h, 41, func(i int) {
				l, h := i/s.h, i%s.h
				want, sum := make([]float64, s.d), 0.0
				for j := range s.l {
					if s.causal && j > l {
						break
					}
					p := math.Exp(dot(row(0, l, h), row(1, j, h), s.d))
					sum += p
					for d := range s.d {
						want[d] += p * float64(row(2, j, h)[d])
					}
				}
				for d := range s.d { // |v| <= 1 and every probability is off by 2^-9 of itself at most
					checkClose(t, "Attention", i*s.d+d, got[i*s.d+d], want[d]/sum, 1.0/500+math.Abs(want[d]/sum)/250)
				}
			})
		})
	}
}

// TestNegativeScaleBF16 checks that attention with -q and a negative scale gives what q and the positive scale give:
// with a negative scale, the maximum of the scaled scores is not the scaled maximum.
func TestNegativeScaleBF16(t *testing.T) {
	const l, d = 64, 32
	qkv := tensor(engine.BF16, 5, 1, l, 3, 1, d)
	minus := tensor(engine.BF16, 5, 1, l, 3, 1, d)
	q := minus.Buf.Host
	for i := range l {
		for c := range d {
			q[(i*3*d+c)*2+1] ^= 0x80 // -q
		}
	}
	eachLevel(t, 1, func(t *testing.T, o *Ops) {
		want, got := tensor(engine.BF16, 6, 1, l, 1, d), tensor(engine.BF16, 6, 1, l, 1, d)
		o.Attention(want, qkv.Index(2, 0), qkv.Index(2, 1), qkv.Index(2, 2), engine.AttentionArgs{Scale: 40})
		o.Attention(got, minus.Index(2, 0), minus.Index(2, 1), minus.Index(2, 2), engine.AttentionArgs{Scale: -40})
		w := values(want)
		for i, v := range values(got) {
			checkClose(t, "Attention", i, v, float64(w[i]), 1.0/100)
		}
	})
}

// TestOddTaps checks that Linear refuses a convolution weight whose taps have an odd number of channels, because each
// tap is padded to whole pairs.
func TestOddTaps(t *testing.T) {
	eachLevel(t, 1, func(t *testing.T, o *Ops) {
		w := packNoise(t, o, engine.BF16, 8, 27, 3)
		defer o.Free(w.Base.Buf)
		defer func() {
			if e, ok := recover().(*engine.ShapeError); !ok || !strings.Contains(e.Error(), "taps of 3 channels") {
				t.Errorf("recovered %v, want a ShapeError that says how the weight is packed", e)
			}
		}()
		o.Linear(tensor(engine.F32, 1, 2, 8), tensor(engine.F32, 1, 2, 27), w, engine.Epilogue{})
	})
}
