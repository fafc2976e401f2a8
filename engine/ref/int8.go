package ref

import (
	"encoding/binary"
	"math"

	"patchbay/engine"
)

// pack8 packs an i8 matrix: the K bytes of each row, followed by its scale as f32.
func pack8(m engine.Matrix) *engine.Packed {
	row, piece := m.Row, m.K+4
	if row == 0 {
		row = m.K
	}
	out := make([]byte, m.N*piece)
	for n, s := range m.Scales {
		copy(out[n*piece:], m.Data[n*row:n*row+m.K])
		binary.LittleEndian.PutUint32(out[n*piece+m.K:], math.Float32bits(s))
	}
	return &engine.Packed{
		Buf: engine.Buf{Host: out}, Bytes: len(out), DType: engine.I8, N: m.N, K: m.K, Layout: layout,
		PieceRows: 1, PieceBytes: piece, Rotated: m.Rotated,
	}
}

// QuantiseRow rounds a row of activations to 8 bits for a product with an I8 weight: q = x/scale, ties to even, scale =
// max|x|/127 but at least 1e-30. If the weight was rotated, x is rotated first; x is overwritten. With narrow, x is
// bf16, and so are the rotated row, the scale that divides and the quotient, as in the programs that made the weights.
// A row with a NaN or an infinity gets NaN as its scale, so that all its products are NaN.
func QuantiseRow(q []int8, x []float32, rotated int, narrow bool) (scale float32) {
	if rotated > 0 {
		engine.Rotate(x, rotated)
	}
	if narrow && rotated > 0 {
		for i, v := range x {
			x[i] = engine.F32FromBF16(engine.BF16FromF32(v))
		}
	}
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v)&0x7fffffff)
	}
	scale = math.Float32frombits(top) / 127
	if scale < 1e-30 {
		scale = 1e-30
	}
	if top >= 0x7f800000 {
		clear(q)
		return float32(math.NaN())
	}
	by := scale
	if narrow {
		by = engine.F32FromBF16(engine.BF16FromF32(scale))
	}
	for i, v := range x {
		v /= by
		if narrow {
			v = engine.F32FromBF16(engine.BF16FromF32(v))
		}
		q[i] = int8(min(max(math.RoundToEven(float64(v)), -128), 127))
	}
	return scale
}

// rounded multiplies with weights of 8 bits.
type rounded struct {
	narrow bool // x comes from bf16
	q      []int8
	scales []float32
	line   []float32
}

// multiply is the multiply of product.go for rows of x rounded to 8 bits: the integer sum, which is exact, as f32 times
// the product of both scales.
func (r *rounded) multiply(acc []float64, width int, x []float64, count int, w *engine.Packed, n0, n1 int) {
	if len(r.q) < count*w.K {
		r.q, r.scales, r.line = make([]int8, count*w.K), make([]float32, count), make([]float32, w.K)
	}
	for i := range count {
		for k := range r.line {
			r.line[k] = float32(x[i*w.K+k])
		}
		r.scales[i] = QuantiseRow(r.q[i*w.K:(i+1)*w.K], r.line, w.Rotated, r.narrow)
	}
	for n := n0; n < n1; n++ {
		row := w.Buf.Host[n*(w.K+4) : (n+1)*(w.K+4)]
		factor := math.Float32frombits(binary.LittleEndian.Uint32(row[w.K:]))
		for i := range count {
			sum := int32(0)
			for k, q := range r.q[i*w.K : (i+1)*w.K] {
				sum += int32(q) * int32(int8(row[k]))
			}
			acc[i*width+n-n0] = float64(float32(sum) * (r.scales[i] * factor))
		}
	}
}
