package sampling

// sampleDDPM is the ancestral sampler of DDPM (Ho et al. 2020, algorithm 2) in the variance-preserving view of
// sigma.
func sampleDDPM(r *Run) error {
	return r.each(r.Sigmas, func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		abar, abarNext := 1/(mul(s, s)+1), 1/(mul(next, next)+1)
		alpha := abar / abarNext
		shrink, grow := sqrt32(1+sq(s)), sqrt32(1/alpha)
		root := sqrt32(1 - abar)
		out := make([]float32, len(r.X))
		for k, x := range r.X {
			eps := (x - x0[k]) / s
			out[k] = mul(grow, x/shrink-mul(1-alpha, eps)/root)
		}
		if next == 0 {
			return out, nil
		}
		spread := sqrt32(mul(1-alpha, 1-abarNext) / (1 - abar))
		err := r.addNoise(out, s, next, spread, 1, 1)
		up := sqrt32(1 + sq(next))
		for k := range out {
			out[k] = mul(out[k], up)
		}
		return out, err
	})
}

// sampleLCM is the multistep sampler of latent consistency models (Luo et al. 2023, algorithm 3): x0, re-noised to the
// next sigma.
func sampleLCM(r *Run) error {
	return r.untilZero(r.Sigmas, func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		noise, err := r.noise(s, next)
		if err != nil {
			return nil, err
		}
		return r.Model.NoiseScaling(next, noise, x0, false), nil
	})
}
