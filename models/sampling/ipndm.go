package sampling

// remember appends d to the history and keeps the last n.
func remember(history [][]float32, d []float32, n int) [][]float32 {
	history = append(history, d)
	return history[max(0, len(history)-n):]
}

// sampleIPNDM is the improved pseudo numerical method (Liu et al. 2022, PNDM, and Zhang and Chen 2023): Adams-
// Bashforth with the coefficients of equal steps.
func sampleIPNDM(r *Run) error {
	highest := r.Options.Int("max_order")
	var past [][]float32 // slopes, newest last
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) error {
		d, dt := derivative(r.X, x0, s), next-s
		out, n := make([]float32, len(r.X)), len(past)
		order := min(highest, i+1)
		for k, x := range r.X {
			switch {
			case next == 0:
				out[k] = x0[k]
			case order == 1:
				out[k] = x + mul(dt, d[k])
			case order == 2:
				out[k] = x + mul(dt, mul(3, d[k])-past[n-1][k])/2
			case order == 3:
				out[k] = x + mul(dt, mul(23, d[k])-mul(16, past[n-1][k])+mul(5, past[n-2][k]))/12
			default:
				sum := mul(55, d[k]) - mul(59, past[n-1][k]) + mul(37, past[n-2][k]) - mul(9, past[n-3][k])
				out[k] = x + mul(dt, sum)/24
			}
		}
		r.X = out
		past = remember(past, d, highest-1)
		return nil
	})
}

// sampleIPNDMV is the same method with the coefficients of unequal steps.
func sampleIPNDMV(r *Run) error {
	highest := r.Options.Int("max_order")
	var past [][]float32
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) error {
		d, dt := derivative(r.X, x0, s), next-s
		order := min(highest, i+1)
		slopes := append([][]float32{d}, reversedSlopes(past)...)[:order]
		if next == 0 {
			r.X = x0
		} else {
			out, c := make([]float32, len(r.X)), unequalAdams(r.Sigmas, i, order)
			for k, x := range r.X {
				sum := mul(c[0], slopes[0][k])
				for j := 1; j < order; j++ {
					sum += mul(c[j], slopes[j][k])
				}
				out[k] = x + mul(dt, sum)
			}
			r.X = out
		}
		past = remember(past, d, highest-1)
		return nil
	})
}

func reversedSlopes(past [][]float32) [][]float32 {
	out := make([][]float32, len(past))
	for i := range past {
		out[i] = past[len(past)-1-i]
	}
	return out
}

// unequalAdams returns the Adams-Bashforth weights, newest first, for step i of the given order over uneven sigmas;
// they sum to 1. h0 is the step being made, h1, h2, h3 the ones before.
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
