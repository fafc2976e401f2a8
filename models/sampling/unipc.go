package sampling

// sampleUniPC is UniPC with B(h) = h (Zhao et al. 2023, arXiv 2302.04867): a multistep predictor-corrector of order up
// to three with data prediction, on the variance-preserving view alpha = 1/sqrt(sigma^2+1) of sigma, also for flow
// models. A final sigma of 0 becomes 0.001 in Run.Sigmas.
func sampleUniPC(r *Run) error { return uniPC(r, false) }

// sampleUniPCBH2 is UniPC with B(h) = exp(h) - 1.
func sampleUniPCBH2(r *Run) error { return uniPC(r, true) }

// vpPoint is one sigma in the variance-preserving view.
type vpPoint struct{ sigma, alpha, std, lambda float32 }

func newVPPoint(sigma float32) vpPoint {
	mean := mul(0.5, log32(1/(mul(sigma, sigma)+1)))
	rest := 1 - exp32(mul(2, mean))
	return vpPoint{sigma: sigma, alpha: exp32(mean), std: sqrt32(rest), lambda: mean - mul(0.5, log32(rest))}
}

// unipc is the state of a run: the latest estimates, newest first, and the points where they were made.
type unipc struct {
	r      *Run
	bh2    bool
	points []vpPoint
	past   [][]float32
}

func uniPC(r *Run, bh2 bool) error {
	n := len(r.Sigmas)
	if r.Sigmas[n-1] == 0 {
		r.Sigmas[n-1] = 0.001
	}
	v := &unipc{r: r, bh2: bh2}
	first := sqrt32(1 + sq(r.Sigmas[0]))
	for k := range r.X {
		r.X[k] /= first
	}
	steps := n - 1
	order := min(3, n-2)
	for i := range steps {
		p := newVPPoint(r.Sigmas[i])
		var x0 []float32
		var err error
		switch {
		case i == 0:
			x0, err = v.estimate(r.X, p)
		case i < order:
			x0, err = v.update(p, i, true)
		default:
			x0, err = v.update(p, min(order, steps+1-i), true)
		}
		if err != nil {
			return err
		}
		v.points, v.past = remember(v.points, p, max(order, 1)), remember(v.past, x0, max(order, 1))
		if i == steps-1 && i >= order && i > 0 {
			if _, err := v.update(newVPPoint(r.Sigmas[steps]), min(order, 1), false); err != nil {
				return err
			}
		}
		if err := r.report(i, r.X, x0); err != nil {
			return err
		}
	}
	last := newVPPoint(r.Sigmas[steps]).alpha
	for k := range r.X {
		r.X[k] /= last
	}
	return nil
}

// estimate returns x0 in the variance-preserving view, via the predicted noise like UniPC's model wrapper.
func (v *unipc) estimate(x []float32, p vpPoint) ([]float32, error) {
	scaled, grow := make([]float32, len(x)), sqrt32(sq(p.sigma)+1)
	for k := range x {
		scaled[k] = mul(x[k], grow)
	}
	x0, err := v.r.denoise(scaled, p.sigma)
	if err != nil {
		return nil, err
	}
	out := make([]float32, len(x))
	for k := range x {
		out[k] = (x[k] - mul(p.std, (scaled[k]-x0[k])/p.sigma)) / p.alpha
	}
	return out, nil
}

// update moves Run.X to p with the given order. With correct it also evaluates there, corrects the state with that
// estimate and returns it.
func (v *unipc) update(p vpPoint, order int, correct bool) ([]float32, error) {
	last, newest := v.points[0], v.past[0]
	h := p.lambda - last.lambda
	var ratios []float32
	var diffs [][]float32
	for j := 1; j < order; j++ {
		ratio := (v.points[j].lambda - last.lambda) / h
		ratios, diffs = append(ratios, ratio), append(diffs, derivative(v.past[j], newest, ratio))
	}
	predictor, corrector, b := v.weights(ratios, -h, order, correct)

	base := combine(p.std/last.std, v.r.X, -mul(p.alpha, expm132(-h)), newest)
	gain := mul(p.alpha, b)
	guess := make([]float32, len(base))
	for k := range base {
		guess[k] = base[k] - mul(gain, weighted(diffs, predictor, k))
	}
	if !correct {
		v.r.X = guess
		return nil, nil
	}
	x0, err := v.estimate(guess, p)
	if err != nil {
		return nil, err
	}
	for k := range base {
		sum := weighted(diffs, corrector, k) + mul(corrector[len(corrector)-1], x0[k]-newest[k])
		base[k] -= mul(gain, sum)
	}
	v.r.X = base
	return x0, nil
}

// weighted returns the sum of diffs[j][k]*w[j]; w may be longer than diffs.
func weighted(diffs [][]float32, w []float32, k int) float32 {
	var sum float32
	for j, d := range diffs {
		sum += mul(d[k], w[j])
	}
	return sum
}

// weights returns the predictor's and the corrector's weights of the differences, and B(h), for hh = -h (section 3.2 of
// the paper). The predictor of order 2 and the corrector of order 1 are 1/2; the others solve the moment equations.
func (v *unipc) weights(ratios []float32, hh float32, order int, correct bool) (predictor,
	corrector []float32, b float32,
) {
	b = hh
	if v.bh2 {
		b = expm132(hh)
	}
	all := append(append([]float32(nil), ratios...), 1)
	moments := make([]float64, 0, order)
	phi, factorial := expm132(hh)/hh-1, float32(1)
	for i := 1; i <= order; i++ {
		moments = append(moments, float64(mul(phi, factorial)/b))
		factorial *= float32(i + 1)
		phi = phi/hh - 1/factorial
	}
	switch order {
	case 1:
	case 2:
		predictor = []float32{0.5}
	default:
		predictor = solveMoments(all[:order-1], moments[:order-1])
	}
	if correct {
		corrector = []float32{0.5}
		if order > 1 {
			corrector = solveMoments(all, moments)
		}
	}
	return predictor, corrector, b
}
