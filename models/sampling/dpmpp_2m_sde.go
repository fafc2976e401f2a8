package sampling

// sdeStep holds the quantities of one step that the stochastic DPM-Solver++ multistep samplers share, in half-log-SNR
// lambda.
type sdeStep struct {
	h, hEta float32 // lambda' - lambda, times 1+eta
	alpha   float32 // alpha at the end of the step
	keep    float32 // weight of x
	gain    float32 // 1 - exp(-hEta)
	spread  float32 // size of the noise, without s_noise
}

func (r *Run) sdeStep(s, next float32) sdeStep {
	from, to, eta := r.Model.halfLogSNR(s), r.Model.halfLogSNR(next), r.Options.Float("eta")
	v := sdeStep{h: to - from}
	v.hEta = mul(v.h, float32(eta+1))
	v.alpha = mul(next, exp32(to))
	v.keep = mul(next/s, exp32(mul(-v.h, float32(eta))))
	v.gain = -expm132(-v.hEta)
	v.spread = sqrt32(-expm132(mul(mul(-2, v.h), float32(eta))))
	return v
}

// sdeNoise adds the step's noise, noise*sigma*spread*s_noise, to x in place and returns x.
func (r *Run) sdeNoise(x []float32, s, next, spread float32) ([]float32, error) {
	if !r.noisy() {
		return x, nil
	}
	return x, r.addNoise(x, s, next, next, spread, r.f32("s_noise"))
}

// sampleDPMPP2MSDE is SDE-DPM-Solver++(2M) (Lu et al. 2022, "DPM-Solver++", section 5): the multistep method for
// the diffusion SDE with strength eta, correcting at the midpoint or by Heun's weights.
func sampleDPMPP2MSDE(r *Run) error {
	heun := r.Options.Text("solver_type") == "heun"
	var old []float32
	var hLast float32
	return r.untilZero(r.finiteSigmas(), func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		v := r.sdeStep(s, next)
		out := combine(v.keep, r.X, mul(v.alpha, v.gain), x0)
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
		old, hLast = x0, v.h
		return r.sdeNoise(out, s, next, v.spread)
	})
}

// sampleDPMPP3MSDE is the third-order multistep method of the same family (Crowson, k-diffusion).
func sampleDPMPP3MSDE(r *Run) error {
	var old, older []float32
	var h1, h2 float32
	return r.untilZero(r.finiteSigmas(), func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		v := r.sdeStep(s, next)
		out := combine(v.keep, r.X, mul(v.alpha, v.gain), x0)
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
		old, older = x0, old
		h1, h2 = v.h, h1
		return r.sdeNoise(out, s, next, v.spread)
	})
}
