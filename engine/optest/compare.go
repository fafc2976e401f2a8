package optest

import (
	"fmt"
	"math"

	"patchbay/engine"
)

// tolerance bounds the error of an output element relative to the largest magnitude of that output. With bf16
// activations, bf16 is added to rel, and 2^-7 of the element itself (one unit in its last place) to the bound. The zero
// tolerance demands equality.
type tolerance struct{ rel, bf16 float64 }

// The tolerances of the operations. Errors of sums of K products grow like sqrt(K) (see linearTol). The others allow a
// few f32 roundings and, for functions, the error of a good polynomial.
func exact() tolerance     { return tolerance{} }
func pointTol() tolerance  { return tolerance{rel: 4e-6, bf16: 1e-6} }
func normTol() tolerance   { return tolerance{rel: 1e-5, bf16: 1e-6} }
func attendTol() tolerance { return tolerance{rel: 1e-5, bf16: 8e-3} } // bf16 kernels may round probabilities

// linearTol is the bound that Ops.Linear promises.
func linearTol(k int) tolerance {
	return tolerance{rel: 2e-6 * math.Sqrt(float64(k)), bf16: 4e-3}
}

// bound returns the largest allowed error of an element.
func (t tolerance) bound(want, largest float64, dtype engine.DType) float64 {
	if t == (tolerance{}) {
		return 0
	}
	if dtype == engine.BF16 {
		return (t.rel+t.bf16)*largest + math.Abs(want)/128
	}
	return t.rel * largest
}

// compareSlab compares the outputs of one operand with w, those of ref. The error names the first bad element and the
// worst one.
func compareSlab(got *slab, w []float64, tol tolerance, dtype engine.DType) error {
	g := written(got)
	if len(g) != len(w) {
		return fmt.Errorf("%s: %d elements may be written, ref writes %d", got.label, len(g), len(w))
	}
	largest := 0.0
	for _, v := range w {
		if !math.IsInf(v, 0) {
			largest = max(largest, math.Abs(v))
		}
	}
	first, bad, worst := -1, 0, 0.0
	for i := range w {
		diff := math.Abs(g[i] - w[i])
		if g[i] == w[i] { // infinities too
			continue
		}
		if bound := tol.bound(w[i], largest, dtype); !(diff <= bound) { // NaN is bad too
			if first < 0 {
				first = i
			}
			bad++
		}
		worst = max(worst, diff)
	}
	if first < 0 {
		return nil
	}
	return fmt.Errorf("%s: element %d: got %.9g, want %.9g, error %.3g, bound %.3g; "+
		"%d of %d elements bad, worst error %.3g",
		got.label, first, g[first], w[first], math.Abs(g[first]-w[first]), tol.bound(w[first], largest, dtype),
		bad, len(w), worst)
}

// written returns the output elements of s in row-major order.
func written(s *slab) []float64 {
	n := 0
	for _, number := range s.view {
		n = max(n, int(number))
	}
	out := make([]float64, n)
	for i, number := range s.view {
		switch {
		case number == 0:
		case s.dtype != engine.F64:
			out[number-1] = float64(s.after[i])
		case i%2 == 0:
			low, high := math.Float32bits(s.after[i]), math.Float32bits(s.after[i+1])
			out[number-1] = math.Float64frombits(uint64(high)<<32 | uint64(low))
		}
	}
	return out
}
