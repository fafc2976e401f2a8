package sampling

// erNoiseScale returns the noise scaling function of the extended reverse-time SDE for the solver type, and the size of
// the noise, 0 if the solver is deterministic. With the solver's function phi it is x^(1-eta) phi(x)^eta, so that eta 0
// is the ODE (ComfyUI 0.33.0; 0.8.0 ignored eta for ER-SDE).
func (r *Run) erNoiseScale() (scale func(v float32) float32, noise float32) {
	eta, noise := r.f32("eta"), r.f32("s_noise")
	switch kind := r.Options.Text("solver_type"); {
	case kind == "ODE" || eta == 0:
		return func(v float32) float32 { return v }, 0
	case kind == "ER-SDE":
		return func(v float32) float32 { return mul(v, pow32(exp32(pow32(v, 0.3))+10, eta)) }, noise
	}
	return func(v float32) float32 { return pow32(v, float32(r.Options.Float("eta")+1)) }, noise
}

// sampleERSDE is the ER-SDE solver of up to three stages (Cui et al. 2023, arXiv 2309.06169), variance-preserving
// form, in sigma/alpha, with 200 points for the integrals.
func sampleERSDE(r *Run) error {
	const points = 200
	scale, noiseSize := r.erNoiseScale()
	stages := r.Options.Int("max_stage")
	sigmas := r.finiteSigmas()
	lambdas := make([]float32, len(sigmas))
	for i, s := range sigmas {
		lambdas[i] = exp32(-r.Model.halfLogSNR(s))
	}
	var old, oldSlope []float32
	return r.untilZero(sigmas, func(i int, s, next float32, x0, _ []float32) ([]float32, error) {
		from, to := lambdas[i], lambdas[i+1]
		alphaS, alphaT := s/from, next/to
		ratio := scale(to) / scale(from)
		out := combine(mul(alphaT/alphaS, ratio), r.X, mul(alphaT, 1-ratio), x0)
		if stage := min(stages, i+1); stage >= 2 {
			dt := to - from
			width := -dt / points
			var sum, sumU float64
			for p := range points {
				at := to + mul(float32(p), width)
				inverse := scale(at)
				sum += float64(1 / inverse)
				sumU += float64((at - from) / inverse)
			}
			slope := derivative(x0, old, from-lambdas[i-1])
			factor := mul(alphaT, dt+mul(mul(float32(sum), width), scale(to)))
			for k := range out {
				out[k] += mul(factor, slope[k])
			}
			if stage >= 3 {
				half := (from - lambdas[i-2]) / 2
				factor = mul(alphaT, sq(dt)/2+mul(mul(float32(sumU), width), scale(to)))
				for k := range out {
					out[k] += mul(factor, (slope[k]-oldSlope[k])/half)
				}
			}
			oldSlope = slope
		}
		old = x0
		if noiseSize <= 0 {
			return out, nil
		}
		spread := sqrt32(sq(to) - mul(sq(from), sq(ratio)))
		if spread != spread {
			spread = 0
		}
		return out, r.addNoise(out, s, next, alphaT, noiseSize, spread)
	})
}
