package audio

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
)

// snake writes x + sin(alpha x)^2 / beta, channel by channel, over x [n, c].
func snake(x []float32, alpha, beta []float32) {
	c := len(alpha)
	inParallel(len(x)/c, c*snakeCost, func(from, to int) {
		for i := from * c; i < to*c; i += c {
			snakeRow(x[i:i+c], alpha, beta)
		}
	})
}

func snakeRow(row, alpha, beta []float32) {
	for k, f := range row {
		s := float32(math.Sin(float64(alpha[k] * f)))
		row[k] = f + s*s*(1/(beta[k]+1e-9))
	}
}

// activation is a snake without aliases: it has twice as many samples, made by a filter, of which another filter leaves
// half. Files have exponents of alpha and beta, of which complete makes the factors.
type activation struct {
	alpha, beta []float32 // of c channels
	up, down    []float32 // filters
}

// complete returns an error unless an activation of that name fits c channels. Without betas they are the alphas, and
// without filters those that formulas give.
func (a *activation) complete(name string, c int, betas bool) error {
	if a == nil {
		a = &activation{}
	}
	if len(a.alpha) != c {
		return fmt.Errorf("%s.act.alpha has %d values, want %d", name, len(a.alpha), c)
	}
	if betas && len(a.beta) != c {
		return fmt.Errorf("%s.act.beta has %d values, want %d", name, len(a.beta), c)
	}
	a.alpha = exp(a.alpha)
	if betas {
		a.beta = exp(a.beta)
	} else {
		a.beta = a.alpha
	}
	for _, f := range []*[]float32{&a.up, &a.down} {
		if *f == nil {
			taps := filter()
			*f = taps[:]
		}
		if len(*f) != filterTaps {
			return fmt.Errorf("%s has a filter of %d taps, want %d", name, len(*f), filterTaps)
		}
	}
	return nil
}

// filterTaps is how many taps a filter has.
const filterTaps = 12

// smooth returns the activation of x [n, c]. Edges are repeated.
func (a *activation) smooth(x []float32) []float32 {
	c := len(a.alpha)
	n := len(x) / c
	out := make([]float32, len(x))
	inParallel(n, c*(snakeCost+filterTaps)*2, func(from, to int) {
		// samples [first, last) of the doubled sound
		first, last := max(0, 2*from-filterTaps/2+1), min(2*n, 2*to+filterTaps/2)
		wide := make([]float32, (last-first)*c)
		for m := first; m < last; m++ {
			row := wide[(m-first)*c:][:c]
			for k := 1 - m%2; k < filterTaps; k += 2 { // every second tap meets a sample
				at := min(max((m+filterTaps+3-k)/2-filterTaps/2+1, 0), n-1)
				tap := 2 * a.up[k]
				for i, f := range x[at*c:][:c] {
					row[i] += tap * f
				}
			}
			snakeRow(row, a.alpha, a.beta)
		}
		for j := from; j < to; j++ {
			row := out[j*c:][:c]
			for k, tap := range a.down {
				at := min(max(2*j+k-filterTaps/2+1, 0), 2*n-1) - first
				for i, f := range wide[at*c:][:c] {
					row[i] += tap * f
				}
			}
		}
	})
	return out
}

// exp returns e to the power of each value.
func exp(v []float32) []float32 {
	out := slices.Clone(v)
	for i, f := range v {
		out[i] = float32(math.Exp(float64(f)))
	}
	return out
}

// filter returns a low-pass filter for half of the band: a sinc in a Kaiser window (Kaiser and Schafer, 1980), of sum
// 1.
var filter = sync.OnceValue(func() (out [filterTaps]float32) {
	const half, cutoff, width = filterTaps / 2, 0.25, 0.3
	beta := 0.0
	switch a := 2.285*(half-1)*math.Pi*4*width + 7.95; {
	case a > 50:
		beta = 0.1102 * (a - 8.7)
	case a >= 21:
		beta = 0.5842*math.Pow(a-21, 0.4) + 0.07886*(a-21)
	}
	sum := 0.0
	var v [filterTaps]float64
	for i := range v {
		at := float64(i) - half + 0.5
		r := 2*float64(i)/(filterTaps-1) - 1
		window := bessel(beta*math.Sqrt(1-r*r)) / bessel(beta)
		angle := 2 * cutoff * at * math.Pi
		v[i] = 2 * cutoff * window * math.Sin(angle) / angle
		sum += v[i]
	}
	for i := range v {
		out[i] = float32(v[i] / sum)
	}
	return out
})

// bessel returns the modified Bessel function of the first kind, of order 0.
func bessel(x float64) float64 {
	sum, term := 1.0, 1.0
	for k := 1.0; term > 1e-17*sum; k++ {
		term *= x * x / (4 * k * k)
		sum += term
	}
	return sum
}

// snakeCost is about what a sine takes, in multiply-adds of one goroutine; grain is the least that makes a part.
const (
	snakeCost = 20
	grain     = 1 << 17
)

// inParallel calls f for ranges that cover [0, n) exactly once, on up to GOMAXPROCS goroutines. each is the
// multiply-adds of one element.
func inParallel(n, each int, f func(from, to int)) {
	parts := min(runtime.GOMAXPROCS(0), n, 1+n*max(each, 1)/grain)
	if parts <= 1 {
		f(0, n)
		return
	}
	var wait sync.WaitGroup
	for i := range parts {
		wait.Go(func() { f(i*n/parts, (i+1)*n/parts) })
	}
	wait.Wait()
}
