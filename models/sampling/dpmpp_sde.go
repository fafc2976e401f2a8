package sampling

// sampleDPMPPSDE is SDE-DPM-Solver++(2S) (Lu et al. 2022, "DPM-Solver++", and Crowson, k-diffusion): a stochastic
// step to a middle lambda, then one to the end; both draws are Brownian increments that start at the same sigma.
func sampleDPMPPSDE(r *Run) error {
	eta, part := r.Options.Float("eta"), r.Options.Float("r")
	noisy := eta > 0 && r.Options.Float("s_noise") > 0
	sigmas := r.Model.offsetFirstSigma(r.Sigmas)
	share := 1 / (2 * part)
	return r.each(sigmas, func(_ int, s, next float32, x0, _ []float32) error {
		if next == 0 {
			r.X = x0
			return nil
		}
		from, to := r.Model.halfLogSNR(s), r.Model.halfLogSNR(next)
		middle := from + mul(float32(part), to-from)
		sMiddle := r.Model.sigmaFromLambda(middle)
		alphaS := mul(s, exp32(from))

		v := sdeStage{r: r, from: from, alphaS: alphaS, eta: eta, noisy: noisy}
		guess, err := v.move(r.X, x0, s, sMiddle, middle)
		if err != nil {
			return err
		}
		x02, err := r.denoise(guess, sMiddle)
		if err != nil {
			return err
		}
		mixed := make([]float32, len(x0))
		combine(mixed, float32(1-share), x0, float32(share), x02)
		r.X, err = v.move(r.X, mixed, s, next, to)
		return err
	})
}

// sdeStage moves a state from the lambda it was made for to a later one.
type sdeStage struct {
	r            *Run
	from, alphaS float32
	eta          float64
	noisy        bool
}

// move returns the state at (sigma, lambda), given x at s and the estimate x0.
func (v sdeStage) move(x, x0 []float32, s, sigma, lambda float32) ([]float32, error) {
	alpha := mul(sigma, exp32(lambda))
	down, up := ancestralStep(exp32(-v.from), exp32(-lambda), v.eta)
	h := -log32(down) - v.from
	keep, gain := mul(alpha/v.alphaS, exp32(-h)), mul(alpha, expm132(-h))
	out := make([]float32, len(x))
	for k := range out {
		out[k] = mul(keep, x[k]) - mul(gain, x0[k])
	}
	if !v.noisy {
		return out, nil
	}
	noise, err := v.r.noise(s, sigma)
	if err != nil {
		return nil, err
	}
	scale := v.r.f32("s_noise")
	for k := range out {
		out[k] += mul(mul(mul(alpha, noise[k]), scale), up)
	}
	return out, nil
}
