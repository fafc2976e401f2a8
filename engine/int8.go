package engine

import "math"

// Rotate multiplies every group of neighboring values by the normalized regular Hadamard matrix of size group: the
// Kronecker power of H4 = [[1,1,1,-1],[1,1,-1,1],[1,-1,1,1],[-1,1,1,1]] divided by sqrt(group), which is its own
// inverse (ConvRot, arXiv:2512.03673). group is a power of 4 that divides len(v). All backends use the same order of
// f32 operations: with s = (a+b)+(c+d), a factor H4 gives s-2d, s-2c, s-2b, s-2a, for strides 1, 4, 16 ... in turn.
func Rotate(v []float32, group int) {
	for s := 1; s < group; s *= 4 {
		for at := 0; at < len(v); at += 4 * s {
			for j := at; j < at+s; j++ {
				a, b, c, d := v[j], v[j+s], v[j+2*s], v[j+3*s]
				sum := (a + b) + (c + d)
				v[j], v[j+s], v[j+2*s], v[j+3*s] = sum-2*d, sum-2*c, sum-2*b, sum-2*a
			}
		}
	}
	norm := float32(1 / math.Sqrt(float64(group)))
	for i := range v {
		v[i] *= norm
	}
}

// RotationRule returns the rule that a rotation of k inputs in groups of the given size breaks, "" if none. A group of
// 0 means no rotation.
func RotationRule(group, k int) string {
	n := group
	for n > 1 && n%4 == 0 {
		n /= 4
	}
	switch {
	case group == 0:
		return ""
	case group < 4 || n != 1:
		return "groups of a rotation are powers of 4"
	case k%group != 0:
		return "groups of a rotation must divide K"
	}
	return ""
}

// Widened returns the values of m, with scales applied and rotations undone, as a matrix of d (f32 or bf16) without
// gaps between rows, for backends that cannot multiply m as it is stored.
func (m Matrix) Widened(d DType) Matrix {
	row, line := m.Row, make([]float32, m.K)
	if row == 0 {
		row = m.K
	}
	out := Matrix{Data: make([]byte, m.N*m.K*d.Size()), DType: d, N: m.N, K: m.K}
	for n := range m.N {
		src := m.Data[m.rowBytes(n*row):]
		if m.Blocks != nil {
			m.Blocks.Widen(line, src)
		} else {
			Widen(line, src, m.DType)
		}
		m.dequantise(line, n)
		Narrow(out.Data[n*m.K*d.Size():], line, d)
	}
	return out
}

// dequantise converts the stored numbers of row n to values, in place.
func (m Matrix) dequantise(line []float32, n int) {
	factor := m.Scale
	if factor == 0 {
		factor = 1
	}
	if m.Scales != nil {
		factor *= m.Scales[n]
	}
	for i := range line {
		line[i] *= factor
	}
	if m.Rotated > 0 {
		Rotate(line, m.Rotated)
	}
	for i, by := range m.Inputs {
		line[i] *= by
	}
}
