package sampling

// sampleDPM2 is DPM-Solver-2 in sigma (Lu et al. 2022 and Karras et al. 2022, algorithm 2): the slope at the geometric
// middle of a step is used for the whole step.
func sampleDPM2(r *Run) error {
	return r.eachChurned(false, func(_ int, hat, next float32, x0, _ []float32) ([]float32, error) {
		return r.midpoint(x0, hat, next)
	})
}

// midpoint moves X from sigma to next with the slope at their geometric mean; a step to 0 is Euler's.
func (r *Run) midpoint(x0 []float32, sigma, next float32) ([]float32, error) {
	if next == 0 {
		return euler(r.X, x0, nil, sigma, next), nil
	}
	middle := exp32(lerp32(log32(sigma), log32(next), 0.5))
	x2 := euler(r.X, x0, nil, sigma, middle)
	x02, err := r.denoise(x2, middle)
	if err != nil {
		return nil, err
	}
	return advance(r.X, derivative(x2, x02, middle), next-sigma), nil
}

// sampleDPM2Ancestral is sampleDPM2 with ancestral noise.
func sampleDPM2Ancestral(r *Run) error {
	return r.each(r.Sigmas, func(_ int, s, next float32, x0, _ []float32) ([]float32, error) {
		v := r.ancestry(s, next)
		x, err := r.midpoint(x0, s, v.down)
		if err != nil || v.down == 0 {
			return x, err
		}
		return r.renew(x, v, s, next)
	})
}
