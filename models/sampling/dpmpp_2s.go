package sampling

// sampleDPMPP2SAncestral is DPM-Solver++(2S) (Lu et al. 2022, "DPM-Solver++", algorithm 1) with ancestral noise: a
// second evaluation halfway in log sigma. Under CFG++ (Chung et al. 2024) flow models use this form too.
func sampleDPMPP2SAncestral(r *Run) error {
	if r.Model.IsFlow() && !r.guided {
		return sampleDPMPP2SAncestralFlow(r)
	}
	return r.each(r.Sigmas, func(_ int, s, next float32, x0, uncond []float32) (x []float32, err error) {
		down, up := ancestralStep(s, next, r.Options.Float("eta"))
		if down == 0 {
			x = euler(r.X, x0, uncond, s, down)
		} else if x, err = r.twoStage(x0, uncond, s, down); err != nil {
			return nil, err
		}
		if next > 0 {
			err = r.addNoise(x, s, next, r.f32("s_noise"), up, 1)
		}
		return x, err
	})
}

// guided returns x shifted by the guidance, x + (x0 - uncond), or x itself if uncond is nil.
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

// twoStage moves X by the DPM-Solver++(2S) step from sigma s to down, where x0 is the estimate at s. With uncond
// (CFG++) the state is first shifted by the guidance; as in ComfyUI the second stage uses the uncond of its own
// evaluation.
func (r *Run) twoStage(x0, uncond []float32, s, down float32) ([]float32, error) {
	t, tNext := -log32(s), -log32(down)
	h := tNext - t
	middle := exp32(-(t + mul(0.5, h)))
	at := exp32(-t)
	guess := combine(middle/at, guided(r.X, x0, uncond), -expm132(mul(-h, 0.5)), x0)
	x02, uncond, err := r.estimates(guess, middle)
	if err != nil {
		return nil, err
	}
	return combine(exp32(-tNext)/at, guided(r.X, x0, uncond), -expm132(-h), x02), nil
}

func sampleDPMPP2SAncestralFlow(r *Run) error {
	lambda := func(s float32) float32 { return log32((1 - s) / s) }
	return r.each(r.Sigmas, func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		v := r.ancestry(s, next)
		if next == 0 {
			return euler(r.X, x0, nil, s, v.down), nil
		}
		middle := float32(0.9999)
		if s != 1 {
			from := lambda(s)
			middle = 1 / (exp32(from+mul(0.5, lambda(v.down)-from)) + 1)
		}
		ratio := middle / s
		x02, err := r.denoise(combine(ratio, r.X, 1-ratio, x0), middle)
		if err != nil {
			return nil, err
		}
		ratio = v.down / s
		x := combine(ratio, r.X, 1-ratio, x02)
		if r.eta() > 0 {
			return r.renew(x, v, s, next)
		}
		return x, nil
	})
}
