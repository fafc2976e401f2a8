package sampling

// sampleDPMPP2SAncestral is DPM-Solver++(2S) (Lu et al. 2022, "DPM-Solver++", algorithm 1) with ancestral noise: a
// second evaluation halfway in log sigma.
func sampleDPMPP2SAncestral(r *Run) error {
	if r.Model.IsFlow() {
		return sampleDPMPP2SAncestralFlow(r)
	}
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) error {
		down, up := ancestralStep(s, next, r.Options.Float("eta"))
		if down == 0 {
			r.X = advance(r.X, derivative(r.X, x0, s), down-s)
		} else if err := r.twoStage(x0, nil, s, down); err != nil {
			return err
		}
		if next > 0 {
			return r.freshNoise(i, up)
		}
		return nil
	})
}

// guided returns x moved by the guidance, x + (x0 - uncond), or x itself where uncond is nil.
func guided(x, x0, uncond []float32) []float32 {
	if uncond == nil {
		return x
	}
	out := make([]float32, len(x))
	for k := range x {
		out[k] = x[k] + (x0[k] - uncond[k])
	}
	return out
}

// twoStage moves X by the DPM-Solver++(2S) step from sigma s to down, x0 being the estimate at s. With uncond (CFG++)
// the state is moved by the guidance first; as in ComfyUI the second stage takes the uncond of its own evaluation.
func (r *Run) twoStage(x0, uncond []float32, s, down float32) error {
	t, tNext := -log32(s), -log32(down)
	h := tNext - t
	middle := exp32(-(t + mul(0.5, h)))
	at := exp32(-t)
	guess := make([]float32, len(r.X))
	combine(guess, middle/at, guided(r.X, x0, uncond), -expm132(mul(-h, 0.5)), x0)
	x02, uncond2, err := r.Denoise(guess, middle)
	if err != nil {
		return err
	}
	if uncond == nil {
		uncond2 = nil
	}
	out := make([]float32, len(r.X))
	combine(out, exp32(-tNext)/at, guided(r.X, x0, uncond2), -expm132(-h), x02)
	r.X = out
	return nil
}

func sampleDPMPP2SAncestralFlow(r *Run) error {
	eta := r.Options.Float("eta")
	lambda := func(s float32) float32 { return log32((1 - s) / s) }
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) error {
		down, scale, renoise := flowAncestralStep(s, next, eta)
		if next == 0 {
			r.X = advance(r.X, derivative(r.X, x0, s), down-s)
			return nil
		}
		middle := float32(0.9999)
		if s != 1 {
			from := lambda(s)
			middle = 1 / (exp32(from+mul(0.5, lambda(down)-from)) + 1)
		}
		guess, ratio := make([]float32, len(r.X)), middle/s
		combine(guess, ratio, r.X, 1-ratio, x0)
		x02, err := r.denoise(guess, middle)
		if err != nil {
			return err
		}
		out, ratio := make([]float32, len(r.X)), down/s
		combine(out, ratio, r.X, 1-ratio, x02)
		r.X = out
		if eta > 0 {
			return r.rescaleAndNoise(i, scale, renoise)
		}
		return nil
	})
}

// sampleDPMPP2SAncestralCFGPP is the same under CFG++ (Chung et al. 2024).
func sampleDPMPP2SAncestralCFGPP(r *Run) error {
	return r.each(r.Sigmas, func(i int, s, next float32, x0, uncond []float32) error {
		down, up := ancestralStep(s, next, r.Options.Float("eta"))
		if down == 0 {
			out := make([]float32, len(r.X))
			for k, x := range r.X {
				out[k] = x0[k] + mul((x-uncond[k])/s, down)
			}
			r.X = out
		} else if err := r.twoStage(x0, uncond, s, down); err != nil {
			return err
		}
		if next > 0 {
			return r.freshNoise(i, up)
		}
		return nil
	})
}
