package sampling

// sampleIPNDM is the improved pseudo numerical method (Liu et al. 2022, PNDM, and Zhang and Chen 2023): Adams-
// Bashforth with the coefficients of equal steps.
func sampleIPNDM(r *Run) error {
	weights := [][]float32{{1}, {3, -1}, {23, -16, 5}, {55, -59, 37, -9}}
	divisors := []float32{1, 2, 12, 24}
	return r.adamsBashforth(func(_, order int) ([]float32, float32) { return weights[order-1], divisors[order-1] })
}

// sampleIPNDMV is the same method with the coefficients of unequal steps.
func sampleIPNDMV(r *Run) error {
	return r.adamsBashforth(func(i, order int) ([]float32, float32) { return unequalAdams(r.Sigmas, i, order), 1 })
}

// adamsBashforth runs a linear multistep method. weights returns, for step i, the weights of the latest slopes, newest
// first, and the divisor of their sum.
func (r *Run) adamsBashforth(weights func(i, order int) (w []float32, divisor float32)) error {
	highest := r.Options.Int("max_order")
	var past [][]float32 // slopes
	return r.untilZero(r.Sigmas, func(i int, s, next float32, x0, _ []float32) ([]float32, error) {
		past = remember(past, derivative(r.X, x0, s), highest)
		w, divisor := weights(i, len(past))
		out, dt := make([]float32, len(r.X)), next-s
		for k, x := range r.X {
			sum := mul(w[0], past[0][k])
			for j := 1; j < len(w); j++ {
				sum += mul(w[j], past[j][k])
			}
			out[k] = x + mul(dt, sum)/divisor
		}
		return out, nil
	})
}

// unequalAdams returns the Adams-Bashforth weights, newest first, for step i of the given order over uneven sigmas;
// they sum to 1. h0 is the current step, h1, h2, h3 the preceding ones.
func unequalAdams(sigmas []float32, i, order int) []float32 {
	step := func(back int) float32 { return sigmas[i+1-back] - sigmas[i-back] }
	if order == 1 {
		return []float32{1}
	}
	h0, h1 := step(0), step(1)
	ratio := h0 / h1
	first, second := (2+ratio)/2, -ratio/2
	if order == 2 {
		return []float32{first, second}
	}
	h2 := step(2)
	h01, h12 := h0+h1, h1+h2
	a := (1 - mul(h0/mul(3, h01), mul(h0, h01))/mul(h1, h12)) / 2
	q := h1 / h2
	if order == 3 {
		return []float32{first + a, second - mul(1+q, a), mul(a, h1) / h2}
	}
	h3 := step(3)
	h012, h123, h23 := h01+h2, h12+h3, h2+h3
	b := (1-h0/mul(3, h01))/2 + mul(1-h0/mul(2, h01), h0)/mul(6, h012)
	b = mul(b, mul(mul(h0, h01), h012)) / mul(mul(h1, h12), h123)
	p := mul(h1, h12) / mul(h2, h23)
	return []float32{
		first + a + b,
		second - mul(1+q, a) - mul(1+q+p, b),
		mul(a, h1)/h2 + mul(q+mul(p, 1+h2/h3), b),
		mul(mul(-b, p), h1) / h2,
	}
}
