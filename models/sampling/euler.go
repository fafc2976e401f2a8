package sampling

import "math"

// churn raises the state from Sigmas[i] to a higher sigma by adding fresh noise and returns that sigma (Karras et al.
// 2022, algorithm 2, lines 4-6). Without churn it returns Sigmas[i]. With always it uses up a draw even then.
func (r *Run) churn(i int, always bool) (float32, error) {
	sigma := r.Sigmas[i]
	gamma := 0.0
	amount := r.Options.Float("s_churn")
	if amount > 0 && r.f32("s_tmin") <= sigma && sigma <= r.f32("s_tmax") {
		gamma = min(amount/float64(len(r.Sigmas)-1), math.Sqrt2-1)
	}
	if gamma <= 0 {
		if always {
			r.draws++
		}
		return sigma, nil
	}
	hat := mul(sigma, float32(gamma+1))
	return hat, r.addNoise(r.X, sigma, hat, r.f32("s_noise"), sqrt32(sq(hat)-sq(sigma)), 1)
}

// eachChurned is each with steps that start from the sigma to which churn raises the state.
func (r *Run) eachChurned(always bool, f step) error {
	return r.eachFrom(r.Sigmas, func(i int) (float32, error) { return r.churn(i, always) }, f)
}

// sampleEuler is Euler's method on the probability-flow ODE (Karras et al. 2022, algorithm 2 without lines 7-9).
func sampleEuler(r *Run) error {
	return r.eachChurned(false, func(_ int, hat, next float32, x0, _ []float32) ([]float32, error) {
		return euler(r.X, x0, nil, hat, next), nil
	})
}

// sampleEulerPP is the alternative version of the node SamplerEulerCFGpp: Euler's method from x shifted by the guidance
// (Chung et al. 2024, "CFG++", as an earlier ComfyUI implemented it).
func sampleEulerPP(r *Run) error {
	return r.each(r.Sigmas, func(_ int, s, next float32, x0, uncond []float32) ([]float32, error) {
		out := make([]float32, len(r.X))
		for k, x := range r.X {
			shifted := x - x0[k] + uncond[k]
			out[k] = x + mul((shifted-x0[k])/s, next-s)
		}
		return out, nil
	})
}
