package sampling

// sampleDPM2 is DPM-Solver-2 in sigma (Lu et al. 2022 and Karras et al. 2022, algorithm 2): the slope at the
// geometric middle of a step carries the whole step.
func sampleDPM2(r *Run) error {
	return r.eachChurned(false, func(_ int, hat, next float32, x0 []float32) error { return r.midpoint(x0, hat, next) })
}

// midpoint moves X from sigma to next with the slope at their geometric middle; a step to 0 is Euler's.
func (r *Run) midpoint(x0 []float32, sigma, next float32) error {
	d := derivative(r.X, x0, sigma)
	if next == 0 {
		r.X = advance(r.X, d, next-sigma)
		return nil
	}
	middle := exp32(lerp32(log32(sigma), log32(next), 0.5))
	x2 := advance(r.X, d, middle-sigma)
	x02, err := r.denoise(x2, middle)
	if err != nil {
		return err
	}
	r.X = advance(r.X, derivative(x2, x02, middle), next-sigma)
	return nil
}

// sampleDPM2Ancestral is the same with ancestral noise.
func sampleDPM2Ancestral(r *Run) error {
	eta := r.Options.Float("eta")
	flow := r.Model.IsFlow()
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) error {
		var down, scale, amount float32
		if flow {
			down, scale, amount = flowAncestralStep(s, next, eta)
		} else {
			down, amount = ancestralStep(s, next, eta)
		}
		if err := r.midpoint(x0, s, down); err != nil {
			return err
		}
		switch {
		case down == 0:
			return nil
		case flow:
			return r.rescaleAndNoise(i, scale, amount)
		}
		return r.freshNoise(i, amount)
	})
}
