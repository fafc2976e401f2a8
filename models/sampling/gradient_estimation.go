package sampling

// sampleGradientEstimation is Euler's method with a slope extrapolated from the last two (Permenter and Yuan 2024,
// "Interpreting and Improving Diffusion Models from an Optimization Perspective").
func sampleGradientEstimation(r *Run) error { return gradientEstimation(r, false) }

// sampleGradientEstimationCFGPP is the same under CFG++ (Chung et al. 2024).
func sampleGradientEstimationCFGPP(r *Run) error { return gradientEstimation(r, true) }

func gradientEstimation(r *Run, cfgPP bool) error {
	push := float32(r.Options.Float("ge_gamma") - 1)
	var old []float32
	return r.each(r.Sigmas, func(i int, s, next float32, x0, uncond []float32) error {
		base := x0
		if cfgPP {
			base = uncond
		}
		d, dt := derivative(r.X, base, s), next-s
		out := make([]float32, len(r.X))
		for k, x := range r.X {
			switch {
			case next == 0:
				out[k] = x0[k]
				continue
			case cfgPP:
				out[k] = x0[k] + mul(d[k], next)
			default:
				out[k] = x + mul(d[k], dt)
			}
			if i >= 1 {
				out[k] += mul(mul(push, d[k]-old[k]), dt)
			}
		}
		r.X, old = out, d
		return nil
	})
}
