package sampling

import (
	"fmt"
	"math"
)

// BetaSigmas returns the table's sigmas at the quantiles of a Beta(alpha, beta) distribution (Lee et al. 2024,
// "Beta Sampling is All You Need"), consecutive repeats dropped, then 0.
func BetaSigmas(m *ModelSampling, steps int, alpha, beta float64) ([]float32, error) {
	if steps < 1 {
		return nil, fmt.Errorf("steps %d: want 1 to %d", steps, MaxSteps)
	}
	if !(alpha > 0) || !(beta > 0) {
		return nil, fmt.Errorf("alpha %v, beta %v: want numbers above 0", alpha, beta)
	}
	last := -1
	out := make([]float32, 0, steps+1)
	width := 1 / float64(steps)
	for i := range steps {
		u := 1 - float64(i)*width
		at := int(math.RoundToEven(betaQuantile(u, alpha, beta) * float64(len(m.sigmas)-1)))
		if at != last {
			out = append(out, m.sigmas[at])
		}
		last = at
	}
	return append(out, 0), nil
}

// betaQuantile inverts betaCDF in its first argument, by bisection to the last bit.
func betaQuantile(u, a, b float64) float64 {
	if u <= 0 {
		return 0
	}
	if u >= 1 {
		return 1
	}
	if a == b && u == 0.5 {
		return math.Nextafter(0.5, 1) // as scipy's, which decides between two sigmas of a table of even length
	}
	lo, hi := 0.0, 1.0
	for range 2000 {
		mid := lo + (hi-lo)/2
		if mid <= lo || mid >= hi {
			break
		}
		if betaCDF(mid, a, b) < u {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo + (hi-lo)/2
}

// betaCDF is the regularized incomplete beta function I_x(a, b), by the continued fraction of DLMF 8.17.22, on the side
// where it converges fast.
func betaCDF(x, a, b float64) float64 {
	if x <= 0 {
		return 0
	}
	if x >= 1 {
		return 1
	}
	if x > (a+1)/(a+b+2) {
		return 1 - betaCDF(1-x, b, a)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log1p(-x)) / a

	const tiny = 1e-300
	value, c, d := 1.0, 1.0, 0.0
	for i := 0; i <= 10000; i++ {
		k := float64(i / 2)
		var numerator float64
		switch {
		case i == 0:
			numerator = 1
		case i%2 == 0:
			numerator = k * (b - k) * x / ((a + 2*k - 1) * (a + 2*k))
		default:
			numerator = -(a + k) * (a + b + k) * x / ((a + 2*k) * (a + 2*k + 1))
		}
		d = 1 + numerator*d
		if math.Abs(d) < tiny {
			d = tiny
		}
		d = 1 / d
		c = 1 + numerator/c
		if math.Abs(c) < tiny {
			c = tiny
		}
		value *= c * d
		if math.Abs(c*d-1) < 1e-16 {
			break
		}
	}
	return front * (value - 1)
}
