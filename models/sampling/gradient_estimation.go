package sampling

// sampleGradientEstimation is Euler's method with a slope extrapolated from the last two (Permenter and Yuan 2024,
// "Interpreting and Improving Diffusion Models from an Optimization Perspective"), with or without CFG++ (Chung et
// al.).
func sampleGradientEstimation(r *Run) error {
	push := float32(r.Options.Float("ge_gamma") - 1)
	var old []float32
	return r.untilZero(r.Sigmas, func(_ int, s, next float32, x0, uncond []float32) ([]float32, error) {
		from, towards, by := r.X, x0, next-s
		if uncond != nil {
			from, towards, by = x0, uncond, next
		}
		d := derivative(r.X, towards, s)
		out := advance(from, d, by)
		for k := range old {
			out[k] += mul(mul(push, d[k]-old[k]), next-s)
		}
		old = d
		return out, nil
	})
}
