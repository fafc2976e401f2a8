package sampling

import "slices"

// dpmSolver is DPM-Solver in t = -log sigma with the noise prediction of Karras' view (Lu et al. 2022, arXiv
// 2206.00927, algorithms 1 to 3): single steps of order one to three from a given slope at the start.
type dpmSolver struct{ r *Run }

// eps returns (x - x0)/sigma at t.
func (v dpmSolver) eps(x []float32, t float32) ([]float32, error) {
	sigma := exp32(-t)
	x0, err := v.r.denoise(x, sigma)
	if err != nil {
		return nil, err
	}
	return derivative(x, x0, sigma), nil
}

// first returns the first-order step of size h to t = to, x - sigma*expm1(h)*eps.
func (v dpmSolver) first(x, eps []float32, to, h float32) []float32 {
	return advance(x, eps, -mul(exp32(-to), expm132(h)))
}

// corrected returns the first-order step minus w*(eps1 - eps), where eps1 is the slope inside the step.
func (v dpmSolver) corrected(x, eps, eps1 []float32, to, h, w float32) []float32 {
	out := v.first(x, eps, to, h)
	for k := range out {
		out[k] -= mul(w, eps1[k]-eps[k])
	}
	return out
}

// inner returns the slope at the fraction part of the step of size h from t, reached by a first-order step.
func (v dpmSolver) inner(x, eps []float32, t, h float32, part float64) ([]float32, error) {
	s := t + mul(float32(part), h)
	return v.eps(v.first(x, eps, s, mul(float32(part), h)), s)
}

// second returns the second-order step with its inner point at the fraction r1, and the slope there for reuse.
func (v dpmSolver) second(x, eps []float32, t, to float32, r1 float64) (out, slope []float32, err error) {
	h := to - t
	eps1, err := v.inner(x, eps, t, h, r1)
	if err != nil {
		return nil, nil, err
	}
	return v.corrected(x, eps, eps1, to, h, mul(exp32(-to)/float32(2*r1), expm132(h))), eps1, nil
}

// third returns the third-order step with its inner points at one and two thirds. eps1 is the slope at one third; it is
// evaluated if nil.
func (v dpmSolver) third(x, eps, eps1 []float32, t, to float32) (out []float32, err error) {
	const r1, r2 = 1.0 / 3, 2.0 / 3
	h := to - t
	if eps1 == nil {
		if eps1, err = v.inner(x, eps, t, h, r1); err != nil {
			return nil, err
		}
	}
	part := mul(float32(r2), h)
	s2 := t + part
	w := mul(mul(exp32(-s2), float32(r2/r1)), expm132(part)/part-1)
	eps2, err := v.eps(v.corrected(x, eps, eps1, s2, part, w), s2)
	if err != nil {
		return nil, err
	}
	return v.corrected(x, eps, eps2, to, h, mul(exp32(-to)/float32(r2), expm132(h)/h-1)), nil
}

// estimate returns x0 = x - sigma*eps at t, as the callback shows it.
func (v dpmSolver) estimate(x, eps []float32, t float32) []float32 {
	return advance(x, eps, -exp32(-t))
}

// dpmRange returns the run's interval in t = -log sigma. A final 0 is replaced by the sigma before it.
func (r *Run) dpmRange() (start, end float32) {
	low := r.Sigmas[len(r.Sigmas)-1]
	if low == 0 {
		low = r.Sigmas[len(r.Sigmas)-2]
	}
	return -log32(r.Sigmas[0]), -log32(low)
}

// sampleDPMFast is DPM-Solver-fast (section 3.4 of the paper): as many evaluations as there are steps, in groups of
// three that are evenly spaced in log sigma, whatever sigmas lie in between.
func sampleDPMFast(r *Run) error {
	start, end := r.dpmRange()
	v, n := dpmSolver{r}, len(r.Sigmas)-1
	groups := n/3 + 1
	times := linspace32(start, end, groups+1)
	orders := slices.Repeat([]int{3}, groups-1)
	if n%3 == 0 {
		orders[len(orders)-1] = 2
		orders = append(orders, 1)
	} else {
		orders = append(orders, n%3)
	}
	for i, order := range orders {
		t, to := times[i], times[i+1]
		eps, err := v.eps(r.X, t)
		if err != nil {
			return err
		}
		if err := r.report(i, r.X, v.estimate(r.X, eps, t)); err != nil {
			return err
		}
		switch order {
		case 1:
			r.X = v.first(r.X, eps, to, to-t)
		case 2:
			r.X, _, err = v.second(r.X, eps, t, to, 0.5)
		default:
			r.X, err = v.third(r.X, eps, nil, t, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
