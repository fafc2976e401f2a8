//go:build cgo && fakegpu

package cuda

import (
	"math"
	"math/rand/v2"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// bench provides the same operands to two implementations.
type bench struct {
	t   testing.TB
	ops engine.Ops
	rng *rand.Rand
	buf []engine.Buf
}

// compare runs call on ref and on o and compares the returned tensors. An element may differ by at most rel times
// itself plus half of rel times the largest magnitude.
func compare(t *testing.T, o *Ops, rel float64, call func(m *bench) engine.Tensor) {
	t.Helper()
	want, got := results(t, ref.New(), call), results(t, o, call)
	largest := 0.0
	for _, v := range want {
		if !math.IsInf(float64(v), 0) {
			largest = max(largest, math.Abs(float64(v)))
		}
	}
	for i := range want {
		diff := math.Abs(float64(got[i]) - float64(want[i]))
		if bound := rel * (math.Abs(float64(want[i])) + largest/2); !(diff <= bound) && got[i] != want[i] {
			t.Fatalf("element %d of %d: got %g, want %g, error %g, bound %g", i, len(want), got[i], want[i], diff, bound)
		}
	}
}

// newRand returns a generator with a fixed seed.
func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func results(t *testing.T, ops engine.Ops, call func(m *bench) engine.Tensor) []float32 {
	t.Helper()
	m := &bench{t: t, ops: ops, rng: newRand()}
	y := call(m)
	out := make([]float32, y.Len())
	if err := ops.Download(out, y).Wait(); err != nil {
		t.Fatal(err)
	}
	for _, b := range m.buf {
		ops.Free(b)
	}
	return out
}

// numbers returns n standard normal numbers times scale.
func (m *bench) numbers(n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(m.rng.NormFloat64() * scale)
	}
	return v
}

// normal returns a contiguous tensor of normal numbers.
func (m *bench) normal(dtype engine.DType, shape ...int) engine.Tensor {
	m.t.Helper()
	t := engine.NewTensor(engine.Buf{}, dtype, shape...)
	buf, err := m.ops.Alloc(t.Bytes())
	if err != nil {
		m.t.Fatal(err)
	}
	m.buf = append(m.buf, buf)
	t = engine.NewTensor(buf, dtype, shape...)
	m.ops.Upload(t, m.numbers(t.Len(), 1))
	return t
}

// weight packs a matrix of normal numbers / sqrt(k).
func (m *bench) weight(dtype engine.DType, n, k int) *engine.Packed {
	m.t.Helper()
	data := make([]byte, n*k*dtype.Size())
	engine.Narrow(data, m.numbers(n*k, 1/math.Sqrt(float64(k))), dtype)
	p, err := m.ops.Pack(engine.Matrix{Data: data, DType: dtype, N: n, K: k}, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.buf = append(m.buf, p.Buf)
	return p
}
