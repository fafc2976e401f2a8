package sampling

// sampleSASolver is the stochastic Adams solver (Xue et al. 2023, arXiv 2309.05019) with data prediction: a predictor
// and a corrector of selectable orders, stochastic with strength eta while sigma lies between two percentages of the
// schedule. With use_pece every corrected state is evaluated again.
func sampleSASolver(r *Run) error { return saSolver(r, r.Options.Bool("use_pece")) }

// sampleSASolverPECE is sampleSASolver with use_pece always on.
func sampleSASolverPECE(r *Run) error { return saSolver(r, true) }

// sa is the state of one run of the solver.
type sa struct {
	r       *Run
	sigmas  []float32
	lambdas []float32
	pece    bool
	past    [][]float32 // estimates
	tau     float64     // of the last predictor
	noise   []float32   // of the last predictor, scaled
}

func saSolver(r *Run, pece bool) error {
	v := &sa{r: r, sigmas: r.finiteSigmas(), pece: pece}
	for _, s := range v.sigmas {
		v.lambdas = append(v.lambdas, r.Model.halfLogSNR(s))
	}
	corrected := r.X // the state before the predictor's step
	for i := range len(r.Sigmas) - 1 {
		x0, _, err := r.evaluate(i, v.sigmas[i])
		if err != nil {
			return err
		}
		v.past = remember(v.past, x0, max(r.Options.Int("predictor_order"), r.Options.Int("corrector_order")))
		predict, correct := v.orders(i)
		if correct == 0 {
			corrected = r.X
		} else {
			corrected = v.correct(corrected, i, correct)
			if pece {
				if x0, err = r.denoise(corrected, v.sigmas[i]); err != nil {
					return err
				}
				v.past[0] = x0
			}
		}
		if v.sigmas[i+1] == 0 {
			r.X = x0
			continue
		}
		if r.X, err = v.predict(corrected, i, predict); err != nil {
			return err
		}
	}
	return nil
}

// orders returns the orders of step i, limited by the number of estimates and lowered before a final 0.
func (v *sa) orders(i int) (predict, correct int) {
	n, o := len(v.sigmas), v.r.Options
	predict, correct = min(o.Int("predictor_order"), len(v.past)), min(o.Int("corrector_order"), len(v.past))
	if i == 0 || v.sigmas[i+1] == 0 && !v.pece {
		correct = 0
	}
	if v.sigmas[n-1] == 0 {
		predict, correct = min(predict, n-2-i), min(correct, n-1-i)
	}
	return predict, correct
}

// strength returns tau at a sigma: eta inside the stochastic interval, else 0.
func (v *sa) strength(sigma float32) float64 {
	o, at := v.r.Options, float64(sigma)
	if v.r.Model.PercentToSigma(o.Float("sde_start_percent")) >= at &&
		at >= v.r.Model.PercentToSigma(o.Float("sde_end_percent")) {
		return o.Float("eta")
	}
	return 0
}

// correct moves x, the state at step i-1, to step i using the estimate there (eq. 18), and adds the predictor's noise.
func (v *sa) correct(x []float32, i, order int) []float32 {
	out := v.adams(x, i-1, i, order, i, true)
	if v.tau > 0 && v.r.f32("s_noise") > 0 {
		for k := range out {
			out[k] += v.noise[k]
		}
	}
	return out
}

// predict moves x from step i to step i+1 (eq. 15) and adds fresh noise.
func (v *sa) predict(x []float32, i, order int) ([]float32, error) {
	v.tau = v.strength(v.sigmas[i+1])
	out := v.adams(x, i, i+1, order, i, false)
	scale := v.r.f32("s_noise")
	if v.tau <= 0 || scale <= 0 {
		return out, nil
	}
	noise, err := v.r.noise(v.sigmas[i], v.sigmas[i+1])
	if err != nil {
		return nil, err
	}
	h := v.lambdas[i+1] - v.lambdas[i]
	spread := sqrt32(-expm132(mul(float32(-2*(v.tau*v.tau)), h)))
	v.noise = make([]float32, len(out))
	for k := range out {
		v.noise[k] = mul(mul(mul(noise[k], v.sigmas[i+1]), spread), scale)
		out[k] += v.noise[k]
	}
	return out, nil
}

// adams returns the deterministic part of a step between two indices, from order estimates of which last is the newest.
func (v *sa) adams(x []float32, from, to, order, last int, corrector bool) []float32 {
	h := v.lambdas[to] - v.lambdas[from]
	b := v.coefficients(from, to, v.lambdas[last-order+1:last+1], corrector)
	keep := mul(v.sigmas[to]/v.sigmas[from], exp32(mul(float32(-(v.tau*v.tau)), h)))
	out := make([]float32, len(x))
	for k := range out {
		sum := mul(v.past[order-1][k], b[0])
		for j := 1; j < order; j++ {
			sum += mul(v.past[order-1-j][k], b[j])
		}
		out[k] = mul(keep, x[k]) + sum
	}
	return out
}

// coefficients returns the weights of the estimates at the given lambdas, oldest first, for the step from -> to: alpha
// times the integral of exp((1+tau^2)(l - l_to)) times their Lagrange polynomials, or with simple_order_2 the closed
// forms of order two in appendix D.
func (v *sa) coefficients(from, to int, lambdas []float32, corrector bool) []float32 {
	start, end := v.lambdas[from], v.lambdas[to]
	alpha := mul(v.sigmas[to], exp32(end))
	grow := 1 + v.tau*v.tau
	h := end - start
	if v.r.Options.Bool("simple_order_2") && len(lambdas) == 2 {
		whole := mul(alpha, -expm132(mul(-h, float32(grow))))
		if corrector {
			b := mul(alpha, mul(float32(0.5*grow), h))
			return []float32{whole - b, b}
		}
		b := mul(alpha, mul(float32(0.5*grow), sq(h))) / (lambdas[0] - start)
		return []float32{b, whole - b}
	}
	out := solveMoments(lambdas, exponentialIntegrals(float64(start), float64(end), grow, len(lambdas)))
	for j := range out {
		out[j] = mul(alpha, out[j])
	}
	return out
}
