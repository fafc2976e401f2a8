package ref

import (
	"math"
	"testing"

	"patchbay/engine"
)

// TestQuantiseTakesTheNearestCode checks by brute force over all 254 numbers of the format that the scale brings the
// largest magnitude to 448, that no code is nearer than the chosen one, and that a tie goes to the even code.
func TestQuantiseTakesTheNearestCode(t *testing.T) {
	o := New()
	x := engine.FromF32([]float32{
		1, -0.37, 0.0021, 0.99, -0.5, 0.062, 0.0004, 0, 448, 27, -29, 25, 0.0009765625,
		0.0029296875, -1.0625, 1.1875,
	}, 2, 8)
	q, scale, y := engine.NewTensor(engine.Buf{Host: make([]byte, 16)}, engine.F8E4M3, 2, 8),
		engine.FromF32(make([]float32, 2), 2), engine.FromF32(make([]float32, 16), 2, 8)
	o.Quantise(q, scale, x)
	o.Dequantise(y, q, scale)
	if got := scale.F32(); got[0] != float32(1)/448 || got[1] != 1 {
		t.Errorf("scales %v, want %v and 1", got, float32(1)/448)
	}
	for i, v := range x.F32() {
		want, s := float64(v/scale.F32()[i/8]), scale.F32()[i/8]
		best, code := math.Inf(1), byte(0)
		for c := range 256 {
			if c&0x7f == 0x7f {
				continue // NaN
			}
			d := math.Abs(float64(engine.F32FromF8E4M3(uint8(c))) - want)
			if d < best || d == best && c&1 == 0 {
				best, code = d, byte(c)
			}
		}
		if got := engine.F32FromF8E4M3(q.Buf.Host[i]); got != engine.F32FromF8E4M3(code) {
			t.Errorf("element %d: %v is stored as %v, nearest is %v", i, want, got, engine.F32FromF8E4M3(code))
		}
		if got, want := y.F32()[i], engine.F32FromF8E4M3(code)*s; got != want {
			t.Errorf("element %d comes back as %v, want %v", i, got, want)
		}
		if diff, bound := math.Abs(float64(y.F32()[i]-v)),
			max(math.Abs(float64(v))/16, float64(s)/1024)*(1+1e-6); !(diff <= bound) {
			t.Errorf("element %d: error %v, the specification promises %v", i, diff, bound)
		}
	}
}
