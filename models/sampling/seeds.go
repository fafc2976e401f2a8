package sampling

// The exponential integrators of SEEDS (Gonzalez et al. 2023, arXiv 2305.14267) in half-log-SNR lambda, for data
// prediction. phi1 and phi2 include their factor h.
func hPhi1(h float32) float32 { return expm132(h) }
func hPhi2(h float32) float32 { return (expm132(h) - h) / h }

// seeds holds one step of a SEEDS sampler.
type seeds struct {
	r            *Run
	s            float32   // sigma at the start of the step
	from, to     float32   // lambda at its start and end
	h, hEta      float32   // step size, times 1+eta
	accumulated  []float32 // noise of the step so far
	lastFraction float64   // fraction of the step that accumulated covers
	lastSigma    float32
}

// newSeeds prepares the step from s to next.
func newSeeds(r *Run, s, next float32) *seeds {
	v := &seeds{r: r, s: s, from: r.Model.halfLogSNR(s), to: r.Model.halfLogSNR(next), lastSigma: s}
	v.h = v.to - v.from
	v.hEta = mul(v.h, float32(r.eta()+1))
	return v
}

// at returns sigma and alpha at a fraction of the step.
func (v *seeds) at(fraction float64) (sigma, alpha float32) {
	lambda := lerp32(v.from, v.to, float32(fraction))
	sigma = v.r.Model.sigmaFromLambda(lambda)
	return sigma, mul(sigma, exp32(lambda))
}

// keep returns the weight of the state at a fraction of the step whose sigma is given.
func (v *seeds) keep(sigma float32, fraction float64) float32 {
	return mul(sigma/v.s, exp32(mul(mul(float32(-fraction), v.h), float32(v.r.eta()))))
}

// addNoise adds to x the noise of the step up to a fraction of it, whose sigma is given: the noise accumulated so far
// decays, and a fresh part is added. It returns x.
func (v *seeds) addNoise(x []float32, sigma float32, fraction float64) ([]float32, error) {
	if !v.r.noisy() {
		return x, nil
	}
	fresh, err := v.r.noise(v.lastSigma, sigma)
	if err != nil {
		return nil, err
	}
	part := mul(mul(float32(v.lastFraction-fraction), v.h), float32(v.r.eta()))
	noise, spread := make([]float32, len(x)), sqrt32(-expm132(mul(part, 2)))
	for k := range noise {
		noise[k] = mul(spread, fresh[k])
	}
	if v.accumulated != nil {
		noise = advance(noise, v.accumulated, exp32(part))
	}
	v.accumulated, v.lastFraction, v.lastSigma = noise, fraction, sigma
	scale := v.r.f32("s_noise")
	for k := range x {
		x[k] += mul(mul(noise[k], sigma), scale)
	}
	return x, nil
}

// first evaluates the model at a fraction of the step, on the state predicted from x0 alone.
func (v *seeds) first(x0 []float32, fraction float64) ([]float32, error) {
	sigma, alpha := v.at(fraction)
	gain := mul(alpha, hPhi1(mul(float32(-fraction), v.hEta)))
	guess, err := v.addNoise(combine(v.keep(sigma, fraction), v.r.X, -gain, x0), sigma, fraction)
	if err != nil {
		return nil, err
	}
	return v.r.denoise(guess, sigma)
}

// blend returns keep*X - alpha*(a*x0 + b*x1) plus the noise at a fraction of the step whose sigma and alpha are given.
func (v *seeds) blend(sigma, alpha float32, fraction float64, a float32, x0 []float32, b float32,
	x1 []float32,
) ([]float32, error) {
	mixed := combine(a, x0, b, x1)
	return v.addNoise(combine(v.keep(sigma, fraction), v.r.X, -alpha, mixed), sigma, fraction)
}

// sampleSEEDS2 is SEEDS-2 with its intermediate stage at the fraction r.
func sampleSEEDS2(r *Run) error { return seedsTwo(r, r.Options.Float("r")) }

// sampleExpHeun2X0 is the exponential Heun method with data prediction: SEEDS-2 with its stage at the end. Without an
// eta it is deterministic.
func sampleExpHeun2X0(r *Run) error { return seedsTwo(r, 1) }

func seedsTwo(r *Run, part float64) error {
	phi2 := r.Options.Text("solver_type") == "phi_2"
	share := float32(1 / (2 * part))
	return r.untilZero(r.finiteSigmas(), func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		v := newSeeds(r, s, next)
		x02, err := v.first(x0, part)
		if err != nil {
			return nil, err
		}
		alpha := mul(next, exp32(v.to))
		if phi2 {
			b2 := hPhi2(-v.hEta) / float32(part)
			return v.blend(next, alpha, 1, hPhi1(-v.hEta)-b2, x0, b2, x02)
		}
		keep, whole := v.keep(next, 1), mul(alpha, hPhi1(-v.hEta))
		out := make([]float32, len(r.X))
		for k, x := range r.X {
			out[k] = mul(keep, x) - mul(whole, lerp32(x0[k], x02[k], share))
		}
		return v.addNoise(out, next, 1)
	})
}

// sampleSEEDS3 is SEEDS-3 with its stages at the fractions r_1 and r_2, by default one and two thirds.
func sampleSEEDS3(r *Run) error {
	first, second := r.Options.Float("r_1"), r.Options.Float("r_2")
	return r.untilZero(r.finiteSigmas(), func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		v := newSeeds(r, s, next)
		x02, err := v.first(x0, first)
		if err != nil {
			return nil, err
		}
		part := mul(float32(-second), v.hEta)
		a2 := mul(float32(second/first), hPhi2(part))
		s2, alpha2 := v.at(second)
		x3, err := v.blend(s2, alpha2, second, hPhi1(part)-a2, x0, a2, x02)
		if err != nil {
			return nil, err
		}
		x03, err := r.denoise(x3, s2)
		if err != nil {
			return nil, err
		}
		b3 := hPhi2(-v.hEta) / float32(second)
		return v.blend(next, mul(next, exp32(v.to)), 1, hPhi1(-v.hEta)-b3, x0, b3, x03)
	})
}
