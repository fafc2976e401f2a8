package sampling

// sampleHeun is Heun's second-order method (Karras et al. 2022, algorithm 2): the slope is averaged over both ends
// of a step; the step to 0 is Euler's.
func sampleHeun(r *Run) error {
	return r.eachChurned(false, func(_ int, hat, next float32, x0, _ []float32) ([]float32, error) {
		d, dt := derivative(r.X, x0, hat), next-hat
		guess := advance(r.X, d, dt)
		if next == 0 {
			return guess, nil
		}
		x02, err := r.denoise(guess, next)
		if err != nil {
			return nil, err
		}
		for k := range d {
			d[k] = (d[k] + (guess[k]-x02[k])/next) / 2
		}
		return advance(r.X, d, dt), nil
	})
}

// sampleHeunPP2 is Heun++ (Carzit, sd-webui-samplers-scheduler): slopes at up to three sigmas, weighted by sigma
// over the first sigma; fewer near the end of the list.
func sampleHeunPP2(r *Run) error {
	end := r.Sigmas[len(r.Sigmas)-1]
	return r.eachChurned(true, func(i int, hat, next float32, x0, _ []float32) (_ []float32, err error) {
		d, dt := derivative(r.X, x0, hat), next-hat
		if next != end {
			if d, err = r.heunPPSlope(i, d, advance(r.X, d, dt), end); err != nil {
				return nil, err
			}
		}
		return advance(r.X, d, dt), nil
	})
}

// heunPPSlope mixes d, the slope at the start of step i, with those at the next one or two sigmas. x2 is the state
// after an Euler step to the next sigma.
func (r *Run) heunPPSlope(i int, d, x2 []float32, end float32) ([]float32, error) {
	next, after := r.Sigmas[i+1], r.Sigmas[i+2]
	x02, err := r.denoise(x2, next)
	if err != nil {
		return nil, err
	}
	d2 := derivative(x2, x02, next)
	if after == end {
		w2 := next / mul(2, r.Sigmas[0])
		return combine(1-w2, d, w2, d2), nil
	}
	x3 := advance(x2, d2, after-next)
	x03, err := r.denoise(x3, after)
	if err != nil {
		return nil, err
	}
	w := mul(3, r.Sigmas[0])
	w2, w3 := next/w, after/w
	w1 := 1 - w2 - w3
	out := make([]float32, len(d))
	for k := range out {
		out[k] = mul(w1, d[k]) + mul(w2, d2[k]) + mul(w3, (x3[k]-x03[k])/after)
	}
	return out, nil
}
