package sampling

// ancestralStep splits a step from sigma to next into a deterministic step to down and fresh noise of size up, with
// down^2 + up^2 = next^2 (Karras et al. 2022, appendix; the DDPM posterior at eta 1).
func ancestralStep(sigma, next float32, eta float64) (down, up float32) {
	if eta == 0 {
		return next, 0
	}
	up = mul(float32(eta), sqrt32(mul(sq(next), sq(sigma)-sq(next))/sq(sigma)))
	if !(up < next) {
		up = next
	}
	return sqrt32(sq(next) - sq(up)), up
}

// ancestry is how a step is split: a deterministic step to sigma down, a factor on the state, then noise of size up.
type ancestry struct{ down, scale, up float32 }

// ancestry splits the step from sigma to next: by ancestralStep, but for flow models such that the state at next keeps
// its variance.
func (r *Run) ancestry(sigma, next float32) ancestry {
	eta := r.Options.Float("eta")
	if !r.Model.IsFlow() {
		down, up := ancestralStep(sigma, next, eta)
		return ancestry{down, 1, up}
	}
	down := mul(next, 1+mul(next/sigma-1, float32(eta)))
	alphaNext, alphaDown := 1-next, 1-down
	return ancestry{
		down, alphaNext / alphaDown, sqrt32(sq(next) - mul(sq(down), sq(alphaNext))/sq(alphaDown)),
	}
}

// renew moves x, a state at v.down, to next by scaling it and adding noise. It modifies and returns x.
func (r *Run) renew(x []float32, v ancestry, s, next float32) ([]float32, error) {
	for k := range x {
		x[k] = mul(v.scale, x[k])
	}
	return x, r.addNoise(x, s, next, r.f32("s_noise"), v.up, 1)
}

// sampleEulerAncestral is Euler's method with ancestral noise (Song et al. 2021, with DDPM as a special case; the flow
// variant keeps the variance of the interpolation).
func sampleEulerAncestral(r *Run) error {
	flow := r.Model.IsFlow()
	return r.untilZero(r.Sigmas, func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		v := r.ancestry(s, next)
		switch ratio := v.down / s; {
		case !flow && v.down == 0:
			return x0, nil
		case !flow:
			return r.renew(euler(r.X, x0, nil, s, v.down), v, s, next)
		case r.eta() > 0:
			return r.renew(combine(ratio, r.X, 1-ratio, x0), v, s, next)
		default:
			return combine(ratio, r.X, 1-ratio, x0), nil
		}
	})
}

// sampleEulerCFGPP is Euler's method under CFG++ (Chung et al. 2024): the guided x0, re-noised along the direction of
// the negative, in the variance-preserving view; with an eta, ancestral noise is added.
func sampleEulerCFGPP(r *Run) error {
	return r.untilZero(r.Sigmas, func(_ int, s, next float32, x0, uncond []float32) ([]float32, error) {
		alphaS := mul(s, exp32(r.Model.halfLogSNR(s)))
		alphaT := mul(next, exp32(r.Model.halfLogSNR(next)))
		down, up := ancestralStep(s/alphaS, next/alphaT, r.eta())
		down = mul(alphaT, down)
		out := make([]float32, len(r.X))
		for k, x := range r.X {
			d := (x - mul(alphaS, uncond[k])) / s
			out[k] = mul(alphaT, x0[k]) + mul(down, d)
		}
		if r.noisy() {
			return out, r.addNoise(out, s, next, alphaT, r.f32("s_noise"), up)
		}
		return out, nil
	})
}
