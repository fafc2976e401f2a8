package sampling

// ancestralStep divides a step from sigma to next into a deterministic step to down and fresh noise of size up, with
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

// flowAncestralStep is the same for flow models: a step to down, the state scaled by scale, then noise of size
// renoise, so that the state at next keeps its variance.
func flowAncestralStep(sigma, next float32, eta float64) (down, scale, renoise float32) {
	ratio := 1 + mul(next/sigma-1, float32(eta))
	down = mul(next, ratio)
	alphaNext, alphaDown := 1-next, 1-down
	renoise = sqrt32(sq(next) - mul(sq(down), sq(alphaNext))/sq(alphaDown))
	return down, alphaNext / alphaDown, renoise
}

// rescaleAndNoise sets X = scale*X + (noise*s_noise)*amount with the next draw.
func (r *Run) rescaleAndNoise(i int, scale, amount float32) error {
	noise, err := r.noise(r.Sigmas[i], r.Sigmas[i+1])
	if err != nil {
		return err
	}
	s := r.f32("s_noise")
	for k := range r.X {
		r.X[k] = mul(scale, r.X[k]) + mul(mul(noise[k], s), amount)
	}
	return nil
}

// freshNoise adds the next draw times s_noise times amount to X.
func (r *Run) freshNoise(i int, amount float32) error {
	noise, err := r.noise(r.Sigmas[i], r.Sigmas[i+1])
	if err != nil {
		return err
	}
	addNoise(r.X, noise, r.f32("s_noise"), amount)
	return nil
}

// sampleEulerAncestral is Euler's method with ancestral noise (Song et al. 2021, DDPM as a special case; the flow
// form keeps the variance of the interpolation).
func sampleEulerAncestral(r *Run) error {
	if r.Model.IsFlow() {
		return sampleEulerAncestralFlow(r)
	}
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) error {
		down, up := ancestralStep(s, next, r.Options.Float("eta"))
		if down == 0 {
			r.X = x0
			return nil
		}
		r.X = advance(r.X, derivative(r.X, x0, s), down-s)
		return r.freshNoise(i, up)
	})
}

func sampleEulerAncestralFlow(r *Run) error {
	eta := r.Options.Float("eta")
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) error {
		if next == 0 {
			r.X = x0
			return nil
		}
		down, scale, renoise := flowAncestralStep(s, next, eta)
		ratio := down / s
		out := make([]float32, len(r.X))
		combine(out, ratio, r.X, 1-ratio, x0)
		r.X = out
		if eta > 0 {
			return r.rescaleAndNoise(i, scale, renoise)
		}
		return nil
	})
}

// sampleEulerAncestralCFGPP is Euler's method with ancestral noise under CFG++ (Chung et al. 2024): the guided x0,
// re-noised along the negative's direction, in the variance-preserving view.
func sampleEulerAncestralCFGPP(r *Run) error {
	return eulerCFGPP(r, r.Options.Float("eta"), r.f32("s_noise"))
}

// sampleEulerCFGPP is the same without fresh noise.
func sampleEulerCFGPP(r *Run) error { return eulerCFGPP(r, 0, 0) }

func eulerCFGPP(r *Run, eta float64, noiseScale float32) error {
	return r.each(r.Sigmas, func(_ int, s, next float32, x0, uncond []float32) error {
		if next == 0 {
			r.X = x0
			return nil
		}
		alphaS := mul(s, exp32(r.Model.halfLogSNR(s)))
		alphaT := mul(next, exp32(r.Model.halfLogSNR(next)))
		down, up := ancestralStep(s/alphaS, next/alphaT, eta)
		down = mul(alphaT, down)
		out := make([]float32, len(r.X))
		for k, x := range r.X {
			d := (x - mul(alphaS, uncond[k])) / s
			out[k] = mul(alphaT, x0[k]) + mul(down, d)
		}
		r.X = out
		if eta > 0 && noiseScale > 0 {
			noise, err := r.noise(s, next)
			if err != nil {
				return err
			}
			for k := range out {
				out[k] += mul(mul(mul(alphaT, noise[k]), noiseScale), up)
			}
		}
		return nil
	})
}
