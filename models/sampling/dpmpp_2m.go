package sampling

// sampleDPMPP2M is DPM-Solver++(2M) (Lu et al. 2022, "DPM-Solver++", algorithm 2) in -log sigma, for flow models
// too: a multistep method that extrapolates x0 from the two last evaluations.
func sampleDPMPP2M(r *Run) error {
	var old []float32
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) error {
		t, tNext := -log32(s), -log32(next)
		h := tNext - t
		scale := exp32(-tNext) / exp32(-t)
		weight := expm132(-h)
		out := make([]float32, len(r.X))
		if old == nil || next == 0 {
			for k, x := range r.X {
				out[k] = mul(scale, x) - mul(weight, x0[k])
			}
		} else {
			ratio := (t + log32(r.Sigmas[i-1])) / h
			share := 1 / mul(2, ratio)
			for k, x := range r.X {
				d := mul(1+share, x0[k]) - mul(share, old[k])
				out[k] = mul(scale, x) - mul(weight, d)
			}
		}
		r.X, old = out, x0
		return nil
	})
}

// sampleDPMPP2MCFGPP is DPM-Solver++(2M) under CFG++ (Chung et al. 2024): the guided x0 and the negative's
// direction.
func sampleDPMPP2MCFGPP(r *Run) error {
	var old []float32
	return r.each(r.Sigmas, func(i int, s, next float32, x0, uncond []float32) error {
		t := -log32(s)
		h := -log32(next) - t
		keep := exp32(-h)
		out := make([]float32, len(r.X))
		if old == nil || next == 0 {
			for k, x := range r.X {
				out[k] = x0[k] + mul(-keep, uncond[k]) + mul(keep, x)
			}
		} else {
			ratio := (t + log32(r.Sigmas[i-1])) / h
			share := mul(expm132(-h), 1/mul(2, ratio))
			for k, x := range r.X {
				mix := mul(-keep, uncond[k]) - mul(share, x0[k]-old[k])
				out[k] = x0[k] + mix + mul(keep, x)
			}
		}
		r.X, old = out, uncond
		return nil
	})
}
