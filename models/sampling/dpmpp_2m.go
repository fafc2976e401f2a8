package sampling

// sampleDPMPP2M is DPM-Solver++(2M) (Lu et al. 2022, "DPM-Solver++", algorithm 2) in -log sigma, also for flow models:
// a multistep method that extrapolates x0 from the last two evaluations.
func sampleDPMPP2M(r *Run) error {
	var old []float32
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) ([]float32, error) {
		t, tNext := -log32(s), -log32(next)
		h := tNext - t
		d := x0
		if old != nil && next != 0 {
			ratio := (t + log32(r.Sigmas[i-1])) / h
			share := 1 / mul(2, ratio)
			d = combine(1+share, x0, -share, old)
		}
		old = x0
		return combine(exp32(-tNext)/exp32(-t), r.X, -expm132(-h), d), nil
	})
}

// sampleDPMPP2MCFGPP is DPM-Solver++(2M) under CFG++ (Chung et al. 2024): the guided x0, re-noised along the direction
// of the negative.
func sampleDPMPP2MCFGPP(r *Run) error {
	var old []float32
	return r.each(r.Sigmas, func(i int, s, next float32, x0, uncond []float32) ([]float32, error) {
		t := -log32(s)
		h := -log32(next) - t
		keep := exp32(-h)
		mix := make([]float32, len(r.X))
		for k := range mix {
			mix[k] = mul(-keep, uncond[k])
		}
		if old != nil && next != 0 {
			ratio := (t + log32(r.Sigmas[i-1])) / h
			share := mul(expm132(-h), 1/mul(2, ratio))
			for k := range mix {
				mix[k] -= mul(share, x0[k]-old[k])
			}
		}
		old = uncond
		for k, x := range r.X {
			mix[k] = x0[k] + mix[k] + mul(keep, x)
		}
		return mix, nil
	})
}
