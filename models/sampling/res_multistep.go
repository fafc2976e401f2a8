package sampling

import "math"

// sampleResMultistep is the second-order exponential multistep method of "Improved Order Analysis and Design of
// Exponential Integrator for Diffusion Models Sampling" (Zhang et al. 2023, arXiv 2308.02157), with ancestral noise if
// there is an eta, and also under CFG++ (Chung et al. 2024).
func sampleResMultistep(r *Run) error {
	var old []float32 // the estimate of the previous step
	var oldDown float32
	return r.each(r.Sigmas, func(i int, s, next float32, x0, uncond []float32) (out []float32, err error) {
		used := x0
		if uncond != nil {
			used = uncond
		}
		down, up := ancestralStep(s, next, r.eta())
		if down == 0 || old == nil {
			out = euler(r.X, x0, uncond, s, down)
		} else {
			h, keep, b1, b2 := resWeights(r.Sigmas[i-1], s, oldDown, down)
			out = combine(keep, guided(r.X, x0, uncond), h, combine(b1, used, b2, old))
		}
		old, oldDown = used, down
		if next > 0 && r.eta() != 0 {
			err = r.addNoise(out, s, next, r.f32("s_noise"), up, 1)
		}
		return out, err
	})
}

// resWeights returns the step h in -log sigma, the weight of the state and the weights of the two estimates. before and
// s are the sigmas of the last two evaluations; oldDown is where the previous step ended, before its noise.
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
	if v != v {
		return 0
	}
	return min(max(v, -math.MaxFloat32), math.MaxFloat32)
}
