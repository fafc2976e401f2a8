package ref

import (
	"encoding/binary"
	"math"

	"patchbay/engine"
)

// pack8 puts the factor of each row behind its K bytes.
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

// rounded is the product with weights of 8 bits.
type rounded struct {
	narrow bool // x comes from bf16
	q      []int8
	scales []float32
	line   []float32
}

// multiply is multiply of product.go with rows of x that are rounded to 8 bits: the sum of products, which is exact, as
// f32 times the product of both factors.
func (r *rounded) multiply(acc []float64, width int, x []float64, count int, w *engine.Packed, n0, n1 int) {
	if len(r.q) < count*w.K {
		r.q, r.scales, r.line = make([]int8, count*w.K), make([]float32, count), make([]float32, w.K)
	}
	for i := range count {
		for k := range r.line {
			r.line[k] = float32(x[i*w.K+k])
		}
		r.scales[i] = engine.QuantiseRow(r.q[i*w.K:(i+1)*w.K], r.line, w.Rotated, r.narrow)
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
