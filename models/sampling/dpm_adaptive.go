package sampling

import (
	"errors"
	"math"
)

// stepControl is the PID controller of the step size (Crowson, k-diffusion, after torchdiffeq and Hairer).
type stepControl struct {
	h, b1, b2, b3, safety float64
	inverse               []float64 // of the latest errors
}

// propose takes the error of a step, rescales h and reports whether to accept the step.
func (c *stepControl) propose(err float64) bool {
	inv := 1 / (err + 1e-8)
	if c.inverse == nil {
		c.inverse = []float64{inv, inv, inv}
	}
	c.inverse[0] = inv
	f := math.Pow(c.inverse[0], c.b1) * math.Pow(c.inverse[1], c.b2) * math.Pow(c.inverse[2], c.b3)
	f = 1 + math.Atan(f-1)
	accept := f >= c.safety
	if accept {
		c.inverse[2], c.inverse[1] = c.inverse[1], c.inverse[0]
	}
	c.h *= f
	return accept
}

// sampleDPMAdaptive is DPM-Solver-12 or -23 with adaptive steps (section 3.4 and appendix C of the paper). Two orders
// are compared over the whole latent, so the steps are the same for every part and only known at run time.
func sampleDPMAdaptive(r *Run) error {
	o := r.Options
	start, end := r.dpmRange()
	forward := end > start
	eta := o.Float("eta")
	if !forward && eta != 0 {
		return errors.New("eta must be 0 where sigma rises")
	}
	order := float64(o.Int("order"))
	if eta != 0 {
		order = 1.5
	}
	p, in, d := o.Float("pcoeff"), o.Float("icoeff"), o.Float("dcoeff")
	c := &stepControl{
		h: math.Abs(o.Float("h_init")), safety: o.Float("accept_safety"),
		b1: (p + in + d) / order, b2: -(p + 2*d) / order, b3: d / order,
	}
	if !forward {
		c.h = -c.h
	}
	v, s, prev := dpmSolver{r}, start, r.X
	before := func(a, b float32) bool { return a < b == forward && a != b }
	limit := end - 1e-5
	if !forward {
		limit = end + 1e-5
	}
	for i := 0; before(s, limit); i++ {
		if i >= 100000 {
			return errors.New("no end after 100000 steps: raise rtol or atol")
		}
		t := s + float32(c.h)
		if before(end, t) {
			t = end
		}
		target, up := t, float32(0)
		if eta != 0 {
			down, _ := ancestralStep(exp32(-s), exp32(-t), eta)
			target = min(end, -log32(down))
			up = sqrt32(sq(exp32(-t)) - sq(exp32(-target)))
		}
		low, high, x0, err := v.compare(s, target, o.Int("order"))
		if err != nil {
			return err
		}
		size, err := v.difference(low, high, prev)
		if err != nil {
			return err
		}
		if c.propose(size) {
			prev = low
			if eta != 0 {
				if err := r.addNoise(high, exp32(-s), exp32(-t), mul(up, r.f32("s_noise")), 1, 1); err != nil {
					return err
				}
			}
			r.X, s = high, t
		}
		if err := r.report(i, r.X, x0); err != nil {
			return err
		}
	}
	return nil
}

// compare makes the step from s to t with the given order (high) and the one below it (low). x0 is the estimate at s.
func (v dpmSolver) compare(s, t float32, order int) (low, high, x0 []float32, err error) {
	x := v.r.X
	eps, err := v.eps(x, s)
	if err != nil {
		return nil, nil, nil, err
	}
	x0 = v.estimate(x, eps, s)
	if order == 2 {
		low = v.first(x, eps, t, t-s)
		high, _, err = v.second(x, eps, s, t, 0.5)
		return low, high, x0, err
	}
	low, eps1, err := v.second(x, eps, s, t, 1.0/3)
	if err != nil {
		return nil, nil, nil, err
	}
	high, err = v.third(x, eps, eps1, s, t)
	return low, high, x0, err
}

// difference returns the root mean square over the whole latent of (low-high)/max(atol, rtol*max(|low|, |prev|)).
func (v dpmSolver) difference(low, high, prev []float32) (float64, error) {
	atol, rtol := v.r.f32("atol"), v.r.f32("rtol")
	sum := 0.0
	for k := range low {
		top := max(float32(math.Abs(float64(low[k]))), float32(math.Abs(float64(prev[k]))))
		e := float64((low[k] - high[k]) / max(atol, mul(rtol, top)))
		sum += e * e
	}
	total, err := v.r.Norm(sum)
	if err != nil {
		return 0, err
	}
	size := float64(float32(math.Sqrt(total)) / float32(math.Sqrt(float64(v.r.Elements))))
	if math.IsNaN(size) {
		return 0, errors.New("the error estimate is not a number")
	}
	return size, nil
}
