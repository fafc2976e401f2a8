package sampling

import "math"

// sampleResMultistep is the second-order exponential multistep method of "Improved Order Analysis and Design of
// Exponential Integrator for Diffusion Models Sampling" (Zhang et al. 2023, arXiv 2308.02157), deterministic.
func sampleResMultistep(r *Run) error { return resMultistep(r, 0, false) }

// sampleResMultistepAncestral is the same with ancestral noise.
func sampleResMultistepAncestral(r *Run) error {
	return resMultistep(r, r.Options.Float("eta"), false)
}

// sampleResMultistepCFGPP is the deterministic form under CFG++ (Chung et al. 2024).
func sampleResMultistepCFGPP(r *Run) error { return resMultistep(r, 0, true) }

// sampleResMultistepAncestralCFGPP is the ancestral form under CFG++.
func sampleResMultistepAncestralCFGPP(r *Run) error {
	return resMultistep(r, r.Options.Float("eta"), true)
}

func resMultistep(r *Run, eta float64, cfgPP bool) error {
	var old []float32 // the estimate of the step before
	var oldDown float32
	return r.each(r.Sigmas, func(i int, s, next float32, x0, uncond []float32) error {
		used := x0
		if cfgPP {
			used = uncond
		}
		down, up := ancestralStep(s, next, eta)
		out := make([]float32, len(r.X))
		switch {
		case (down == 0 || old == nil) && cfgPP:
			for k, x := range r.X {
				out[k] = x0[k] + mul((x-uncond[k])/s, down)
			}
		case down == 0 || old == nil:
			out = advance(r.X, derivative(r.X, x0, s), down-s)
		default:
			h, keep, b1, b2 := resWeights(r.Sigmas[i-1], s, oldDown, down)
			for k, x := range r.X {
				if cfgPP {
					x += x0[k] - uncond[k]
				}
				out[k] = mul(keep, x) + mul(h, mul(b1, used[k])+mul(b2, old[k]))
			}
		}
		r.X = out
		if next > 0 && eta != 0 {
			if err := r.freshNoise(i, up); err != nil {
				return err
			}
		}
		old, oldDown = used, down
		return nil
	})
}

// resWeights returns the step h in -log sigma, the weight of the state and those of the two estimates. before and s
// are the sigmas of the last two evaluations, oldDown where the step before ended without its noise.
func resWeights(before, s, oldDown, down float32) (h, keep, b1, b2 float32) {
	t, tOld, tNext, tPrev := -log32(s), -log32(oldDown), -log32(down), -log32(before)
	h = tNext - t
	c2 := (tPrev - tOld) / h
	phi1 := expm132(-h) / -h
	phi2 := (phi1 - 1) / -h
	return h, exp32(-h), finite(phi1 - phi2/c2), finite(phi2 / c2)
}

// finite maps NaN to 0 and infinities to the largest float32.
func finite(v float32) float32 {
	switch {
	case v != v:
		return 0
	case math.IsInf(float64(v), 1):
		return math.MaxFloat32
	case math.IsInf(float64(v), -1):
		return -math.MaxFloat32
	}
	return v
}
