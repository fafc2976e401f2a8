package sampling

// sampleGradientEstimation is Euler's method with a slope extrapolated from the last two (Permenter and Yuan 2024,
// "Interpreting and Improving Diffusion Models from an Optimization Perspective").
func sampleGradientEstimation(r *Run) error { return gradientEstimation(r, false) }

// sampleGradientEstimationCFGPP is the same under CFG++ (Chung et al. 2024).
func sampleGradientEstimationCFGPP(r *Run) error { return gradientEstimation(r, true) }

func gradientEstimation(r *Run, cfgPP bool) error {
	push := float32(r.Options.Float("ge_gamma") - 1)
	var old []float32
	for i := range r.steps() {
		s, next := r.Sigmas[i], r.Sigmas[i+1]
		x0, uncond, err := r.evaluate(i, s)
		if err != nil {
			return err
		}
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
	}
	return nil
}
