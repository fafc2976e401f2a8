package sampling

// sdeStep is what the stochastic DPM-Solver++ multistep samplers share in one step, in half-log-SNR lambda.
type sdeStep struct {
	h, hEta float32 // lambda' - lambda, times 1+eta
	alpha   float32 // alpha at the end of the step
	keep    float32 // weight of x
	gain    float32 // 1 - exp(-hEta)
	spread  float32 // size of the noise before s_noise
}

func (r *Run) sdeStep(s, next float32, eta float64) sdeStep {
	from, to := r.Model.halfLogSNR(s), r.Model.halfLogSNR(next)
	v := sdeStep{h: to - from}
	v.hEta = mul(v.h, float32(eta+1))
	v.alpha = mul(next, exp32(to))
	v.keep = mul(next/s, exp32(mul(-v.h, float32(eta))))
	v.gain = -expm132(-v.hEta)
	v.spread = sqrt32(-expm132(mul(mul(-2, v.h), float32(eta))))
	return v
}

// sdeNoise adds noise*sigma*spread*s_noise for the step to X in place.
func (r *Run) sdeNoise(s, next, spread float32) error {
	scale := r.f32("s_noise")
	if r.Options.Float("eta") <= 0 || scale <= 0 {
		return nil
	}
	noise, err := r.noise(s, next)
	if err != nil {
		return err
	}
	for k := range r.X {
		r.X[k] += mul(mul(mul(noise[k], next), spread), scale)
	}
	return nil
}

// sampleDPMPP2MSDE is SDE-DPM-Solver++(2M) (Lu et al. 2022, "DPM-Solver++", section 5): the multistep method for
// the diffusion SDE with strength eta, correcting at the midpoint or by Heun's weights.
func sampleDPMPP2MSDE(r *Run) error {
	eta := r.Options.Float("eta")
	heun := r.Options.Text("solver_type") == "heun"
	sigmas := r.Model.offsetFirstSigma(r.Sigmas)
	var old []float32
	var hLast float32
	return r.each(sigmas, func(_ int, s, next float32, x0, _ []float32) error {
		if next == 0 {
			r.X, old, hLast = x0, x0, 0
			return nil
		}
		v := r.sdeStep(s, next, eta)
		out := make([]float32, len(r.X))
		combine(out, v.keep, r.X, mul(v.alpha, v.gain), x0)
		if old != nil {
			factor := mul(mul(0.5, v.alpha), v.gain)
			if heun {
				factor = mul(v.alpha, v.gain/-v.hEta+1)
			}
			factor = mul(factor, 1/(hLast/v.h))
			for k := range out {
				out[k] += mul(factor, x0[k]-old[k])
			}
		}
		r.X = out
		if err := r.sdeNoise(s, next, v.spread); err != nil {
			return err
		}
		old, hLast = x0, v.h
		return nil
	})
}

// sampleDPMPP3MSDE is the third-order multistep method of the same family (Crowson, k-diffusion).
func sampleDPMPP3MSDE(r *Run) error {
	eta := r.Options.Float("eta")
	sigmas := r.Model.offsetFirstSigma(r.Sigmas)
	var old, older []float32
	var h1, h2 float32
	return r.each(sigmas, func(_ int, s, next float32, x0, _ []float32) error {
		if next == 0 {
			r.X = x0
			old, older = x0, old
			return nil
		}
		v := r.sdeStep(s, next, eta)
		out := make([]float32, len(r.X))
		combine(out, v.keep, r.X, mul(v.alpha, v.gain), x0)
		phi2 := expm132(-v.hEta)/v.hEta + 1
		if older != nil {
			r0, r1 := h1/v.h, h2/v.h
			phi3 := phi2/v.hEta - 0.5
			a, b := mul(v.alpha, phi2), mul(v.alpha, phi3)
			for k := range out {
				d10 := (x0[k] - old[k]) / r0
				diff := d10 - (old[k]-older[k])/r1
				d1 := d10 + mul(diff, r0)/(r0+r1)
				out[k] = out[k] + mul(a, d1) - mul(b, diff/(r0+r1))
			}
		} else if old != nil {
			ratio, a := h1/v.h, mul(v.alpha, phi2)
			for k := range out {
				out[k] += mul(a, (x0[k]-old[k])/ratio)
			}
		}
		r.X = out
		if err := r.sdeNoise(s, next, v.spread); err != nil {
			return err
		}
		old, older = x0, old
		h1, h2 = v.h, h1
		return nil
	})
}
