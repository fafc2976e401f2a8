package sampling

import "math"

const deisPoints = 10000

// sampleDEIS is DEIS in its tabulated Adams-Bashforth form (Zhang and Chen 2023, tAB-DEIS): past slopes are
// extrapolated in the time of a variance-preserving SDE and integrated with its weight.
func sampleDEIS(r *Run) error {
	highest := r.Options.Int("max_order")
	line := newVPTime(r.Sigmas)
	var past [][]float32 // slopes
	return r.each(r.Sigmas, func(i int, s, next float32, x0, _ []float32) ([]float32, error) {
		past = remember(past, derivative(r.X, x0, s), highest)
		if next <= 0 || len(past) == 1 {
			return advance(r.X, past[0], next-s), nil
		}
		out := r.X
		for j, c := range line.weights(i, len(past)) {
			out = advance(out, past[j], c)
		}
		return out, nil
	})
}

// vpTime is the time of the variance-preserving SDE whose beta grows linearly, fitted to sigma 0.002 at time 0.001
// and sigma 80 at time 1 (Karras et al. 2022, table 1 and appendix C.1).
type vpTime struct {
	times          []float32
	beta0, betaEnd float64
}

func newVPTime(sigmas []float32) vpTime {
	low, high := log32(sq(0.002)+1), log32(sq(80)+1)
	const eps = 1e-3
	betaD := mul(2, low/float32(eps)-high) / float32(eps-1)
	betaMin := high - mul(0.5, betaD)
	t := vpTime{times: make([]float32, len(sigmas)), beta0: float64(betaMin), betaEnd: float64(betaD + betaMin)}
	for i, s := range sigmas {
		root := sqrt32(sq(betaMin) + mul(mul(2, betaD), log32(sq(s)+1)))
		t.times[i] = (root - betaMin) / betaD
	}
	return t
}

// weights returns the factors of the latest slopes, newest first, for step i of the given order: a sum over 10000
// points including both ends, times a 10000th of the step, as tabulated by the original.
func (t vpTime) weights(i, order int) []float32 {
	from, to := t.times[i], t.times[i+1]
	sums := make([]float64, order)
	for _, tau32 := range linspace32(from, to, deisPoints) {
		tau := float64(tau32)
		alpha := math.Exp(-0.5*tau*tau*(t.betaEnd-t.beta0) - tau*t.beta0)
		slope := -tau*(t.betaEnd-t.beta0) - t.beta0
		weight := -0.5 * slope / math.Sqrt(alpha*(1-alpha))
		for j := range sums {
			sums[j] += weight * lagrange(t.times, i, j, order, tau)
		}
	}
	out := make([]float32, order)
	width := (to - from) / deisPoints
	for j := range out {
		out[j] = mul(float32(sums[j]), width)
	}
	return out
}
