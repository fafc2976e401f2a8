package sampling

// The exponential integrators of SEEDS (Gonzalez et al. 2023, arXiv 2305.14267) in half-log-SNR lambda, data
// prediction; phi1 and phi2 already carry their factor h.
func hPhi1(h float32) float32 { return expm132(h) }
func hPhi2(h float32) float32 { return (expm132(h) - h) / h }

// seeds is one step of a SEEDS sampler.
type seeds struct {
	r            *Run
	s            float32 // sigma at the start of the step
	from, h      float32 // lambda at the start and step size
	hEta         float32
	eta          float64
	noisy        bool
	accumulated  []float32 // noise of the step so far
	lastFraction float64   // where it stands
	lastSigma    float32
}

// newSeeds prepares the step from s to next.
func newSeeds(r *Run, s, next float32, eta float64, noise float32) seeds {
	from := r.Model.halfLogSNR(s)
	h := r.Model.halfLogSNR(next) - from
	return seeds{
		r: r, s: s, from: from, h: h, hEta: mul(h, float32(eta+1)), eta: eta, noisy: eta > 0 && noise > 0, lastSigma: s,
	}
}

// keep is the weight of the state at a fraction of the step whose sigma is given.
func (v seeds) keep(sigma float32, fraction float64) float32 {
	return mul(sigma/v.s, exp32(mul(mul(float32(-fraction), v.h), float32(v.eta))))
}

// addNoise adds to x the noise of the step up to a fraction of it, whose sigma is given: the part already there
// decays, a fresh part joins.
func (v *seeds) addNoise(x []float32, sigma float32, fraction float64, scale float32) error {
	if !v.noisy {
		return nil
	}
	noise, err := v.r.noise(v.lastSigma, sigma)
	if err != nil {
		return err
	}
	next := make([]float32, len(x))
	if v.accumulated == nil {
		spread := sqrt32(-expm132(mul(mul(float32(-2*fraction), v.h), float32(v.eta))))
		for k := range next {
			next[k] = mul(spread, noise[k])
		}
	} else {
		part := mul(mul(float32(v.lastFraction-fraction), v.h), float32(v.eta))
		combine(next, exp32(part), v.accumulated, sqrt32(-expm132(mul(part, 2))), noise)
	}
	v.accumulated, v.lastFraction, v.lastSigma = next, fraction, sigma
	addNoise(x, next, sigma, scale)
	return nil
}

// sampleSEEDS2 is SEEDS-2 with the middle stage at fraction r.
func sampleSEEDS2(r *Run) error {
	return seedsTwo(r, r.Options.Float("eta"), r.f32("s_noise"), r.Options.Float("r"))
}

// sampleExpHeun2X0 is the deterministic exponential Heun method in data prediction: SEEDS-2 with its stage at the end.
func sampleExpHeun2X0(r *Run) error { return seedsTwo(r, 0, 0, 1) }

// sampleExpHeun2X0SDE is the stochastic one.
func sampleExpHeun2X0SDE(r *Run) error {
	return seedsTwo(r, r.Options.Float("eta"), r.f32("s_noise"), 1)
}

func seedsTwo(r *Run, eta float64, noise float32, part float64) error {
	phi2 := r.Options.Text("solver_type") == "phi_2"
	sigmas := r.Model.offsetFirstSigma(r.Sigmas)
	share := float32(1 / (2 * part))
	return r.each(sigmas, func(_ int, s, next float32, x0, _ []float32) error {
		if next == 0 {
			r.X = x0
			return nil
		}
		v := newSeeds(r, s, next, eta, noise)
		to := r.Model.halfLogSNR(next)
		middle := lerp32(v.from, to, float32(part))
		sMiddle := r.Model.sigmaFromLambda(middle)
		alphaMiddle, alphaT := mul(sMiddle, exp32(middle)), mul(next, exp32(to))

		guess := make([]float32, len(r.X))
		combine(guess, v.keep(sMiddle, part), r.X, -mul(alphaMiddle, hPhi1(mul(float32(-part), v.hEta))), x0)
		if err := v.addNoise(guess, sMiddle, part, noise); err != nil {
			return err
		}
		x02, err := r.denoise(guess, sMiddle)
		if err != nil {
			return err
		}
		out, keep := make([]float32, len(r.X)), v.keep(next, 1)
		b2 := hPhi2(-v.hEta) / float32(part)
		b1 := hPhi1(-v.hEta) - b2
		whole := mul(alphaT, hPhi1(-v.hEta))
		for k, x := range r.X {
			if phi2 {
				out[k] = mul(keep, x) - mul(alphaT, mul(b1, x0[k])+mul(b2, x02[k]))
			} else {
				out[k] = mul(keep, x) - mul(whole, lerp32(x0[k], x02[k], share))
			}
		}
		if err := v.addNoise(out, next, 1, noise); err != nil {
			return err
		}
		r.X = out
		return nil
	})
}

// sampleSEEDS3 is SEEDS-3 with its stages at one and two thirds.
func sampleSEEDS3(r *Run) error {
	eta, noise := r.Options.Float("eta"), r.f32("s_noise")
	first, second := r.Options.Float("r_1"), r.Options.Float("r_2")
	sigmas := r.Model.offsetFirstSigma(r.Sigmas)
	return r.each(sigmas, func(_ int, s, next float32, x0, _ []float32) error {
		if next == 0 {
			r.X = x0
			return nil
		}
		v := newSeeds(r, s, next, eta, noise)
		to := r.Model.halfLogSNR(next)
		l1, l2 := lerp32(v.from, to, float32(first)), lerp32(v.from, to, float32(second))
		s1, s2 := r.Model.sigmaFromLambda(l1), r.Model.sigmaFromLambda(l2)

		x2 := make([]float32, len(r.X))
		combine(x2, v.keep(s1, first), r.X, -mul(mul(s1, exp32(l1)), hPhi1(mul(float32(-first), v.hEta))), x0)
		if err := v.addNoise(x2, s1, first, noise); err != nil {
			return err
		}
		x02, err := r.denoise(x2, s1)
		if err != nil {
			return err
		}
		part := mul(float32(-second), v.hEta)
		a2 := mul(float32(second/first), hPhi2(part))
		x3 := v.blend(s2, second, mul(s2, exp32(l2)), hPhi1(part)-a2, x0, a2, x02)
		if err := v.addNoise(x3, s2, second, noise); err != nil {
			return err
		}
		x03, err := r.denoise(x3, s2)
		if err != nil {
			return err
		}
		b3 := hPhi2(-v.hEta) / float32(second)
		out := v.blend(next, 1, mul(next, exp32(to)), hPhi1(-v.hEta)-b3, x0, b3, x03)
		if err := v.addNoise(out, next, 1, noise); err != nil {
			return err
		}
		r.X = out
		return nil
	})
}

// blend returns keep*X - alpha*(a*x0 + b*x1) at a fraction of the step whose sigma is given.
func (v seeds) blend(sigma float32, fraction float64, alpha, a float32, x0 []float32, b float32,
	x1 []float32,
) []float32 {
	out, keep := make([]float32, len(x0)), v.keep(sigma, fraction)
	for k, x := range v.r.X {
		out[k] = mul(keep, x) - mul(alpha, mul(a, x0[k])+mul(b, x1[k]))
	}
	return out
}
