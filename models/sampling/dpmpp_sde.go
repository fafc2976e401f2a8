package sampling

// sampleDPMPPSDE is SDE-DPM-Solver++(2S) (Lu et al. 2022, "DPM-Solver++", and Crowson, k-diffusion): a stochastic
// step to a middle lambda, then one to the end; both draws are Brownian increments that start at the same sigma.
func sampleDPMPPSDE(r *Run) error {
	part := r.Options.Float("r")
	share := 1 / (2 * part)
	return r.untilZero(r.finiteSigmas(), func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		from, to := r.Model.halfLogSNR(s), r.Model.halfLogSNR(next)
		middle := from + mul(float32(part), to-from)
		sMiddle := r.Model.sigmaFromLambda(middle)
		guess, err := r.sdeMove(x0, s, sMiddle, middle)
		if err != nil {
			return nil, err
		}
		x02, err := r.denoise(guess, sMiddle)
		if err != nil {
			return nil, err
		}
		return r.sdeMove(combine(float32(1-share), x0, float32(share), x02), s, next, to)
	})
}

// sdeMove moves X, a state at s, to (sigma, lambda), given the estimate x0. It returns a new slice.
func (r *Run) sdeMove(x0 []float32, s, sigma, lambda float32) ([]float32, error) {
	from := r.Model.halfLogSNR(s)
	alphaS, alpha := mul(s, exp32(from)), mul(sigma, exp32(lambda))
	down, up := ancestralStep(exp32(-from), exp32(-lambda), r.Options.Float("eta"))
	h := -log32(down) - from
	out := combine(mul(alpha/alphaS, exp32(-h)), r.X, -mul(alpha, expm132(-h)), x0)
	if !r.noisy() {
		return out, nil
	}
	return out, r.addNoise(out, s, sigma, alpha, r.f32("s_noise"), up)
}
