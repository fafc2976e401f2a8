package ref

import (
	"math"

	"patchbay/engine"
)

// leastScale is the smallest normal f32.
const leastScale = 0x1p-126

// Quantise implements engine.Ops. The arithmetic is f32, as specified: every backend gives these bits.
func (*Ops) Quantise(q, scale, x engine.Tensor) {
	engine.CheckQuantise(q, scale, x)
	line, codes := make([]float64, x.Dim(-1)), make([]byte, x.Dim(-1))
	for i := range rows(x) {
		load(line, x, rowStart(x, i))
		top := 0.0
		for _, v := range line {
			if !(math.Abs(v) <= top) { // NaN too
				top = math.Abs(v)
			}
			if top != top {
				break
			}
		}
		s := float32(top) / 448
		switch {
		case s != s || math.IsInf(float64(s), 0):
			s = float32(math.NaN())
			clear(codes)
		case s < leastScale:
			s = 0
			clear(codes)
		default:
			for c, v := range line {
				codes[c] = engine.F8E4M3FromF32(float32(v) / s)
			}
		}
		copy(q.Buf.Host[rowStart(q, i):], codes)
		store(scale, scale.Start(i, scale.Dims()), []float64{float64(s)})
	}
}

func (*Ops) Dequantise(y, q, scale engine.Tensor) {
	engine.CheckDequantise(y, q, scale)
	line := make([]float64, y.Dim(-1))
	one := make([]float64, 1)
	for i := range rows(y) {
		load(line, q, rowStart(q, i))
		load(one, scale, scale.Start(i, scale.Dims()))
		for c, v := range line {
			line[c] = float64(float32(v) * float32(one[0]))
		}
		store(y, rowStart(y, i), line)
	}
}
