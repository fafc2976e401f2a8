package sampling

import (
	"math"
	"slices"
)

// exponentialIntegrals returns, for p < n, grow times the integral of exp(grow*(x-t)) * x^p from s to t, by parts:
// I_p = t^p - s^p*exp(-grow*(t-s)) - p/grow * I_(p-1).
func exponentialIntegrals(s, t, grow float64, n int) []float64 {
	out := make([]float64, n)
	decay := math.Exp(-grow * (t - s))
	tp, sp := 1.0, 1.0
	for p := range out {
		out[p] = tp - sp*decay
		if p > 0 {
			out[p] -= float64(p) / grow * out[p-1]
		}
		tp *= t
		sp *= s
	}
	return out
}

// solveMoments returns the w for which the sum over j of w_j * points_j^i is moments_i for every i: 0 if these are all
// 0, even if points are equal.
func solveMoments(points []float32, moments []float64) []float32 {
	if !slices.ContainsFunc(moments, func(m float64) bool { return m != 0 }) {
		return make([]float32, len(moments))
	}
	matrix := make([][]float64, len(moments))
	for i := range matrix {
		matrix[i] = make([]float64, len(points))
		for j, point := range points {
			matrix[i][j] = 1
			for range i {
				matrix[i][j] *= float64(point)
			}
		}
	}
	out := make([]float32, len(points))
	for j, w := range solveLinear(matrix, slices.Clone(moments)) {
		out[j] = float32(w)
	}
	return out
}

// solveLinear solves a*x = b by Gaussian elimination with partial pivoting. It overwrites a and b and returns x in b.
func solveLinear(a [][]float64, b []float64) []float64 {
	n := len(b)
	for col := range n {
		best := col
		for row := col + 1; row < n; row++ {
			if math.Abs(a[row][col]) > math.Abs(a[best][col]) {
				best = row
			}
		}
		a[col], a[best] = a[best], a[col]
		b[col], b[best] = b[best], b[col]
		for row := col + 1; row < n; row++ {
			f := a[row][col] / a[col][col]
			for k := col; k < n; k++ {
				a[row][k] -= f * a[col][k]
			}
			b[row] -= f * b[col]
		}
	}
	for row := n - 1; row >= 0; row-- {
		for k := row + 1; k < n; k++ {
			b[row] -= a[row][k] * b[k]
		}
		b[row] /= a[row][row]
	}
	return b
}
