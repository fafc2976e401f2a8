package audio

import "math"

// Resample returns x, of from samples a second, at to samples a second: by a sinc in a window, as torchaudio does
// (functional.resample with its defaults; Smith, Digital Audio Resampling). Around x is silence, or its edges are
// repeated.
func Resample(x []float32, from, to int, repeat bool) []float32 {
	if from == to {
		return x
	}
	const rolloff = 0.99
	g := gcd(from, to)
	from, to = from/g, to/g
	base := float64(min(from, to)) * rolloff
	width := int(math.Ceil(crossings * float64(from) / base))
	out := make([]float32, (len(x)*to+from-1)/from)
	for phase := range min(to, len(out)) {
		// The output of this phase in each period of from inputs is a sum over those near its time.
		at := -float32(phase) / float32(to)
		first := max(-width, int(math.Floor((float64(-at)-crossings/base)*float64(from)))-1)
		last := min(width+from-1, int(math.Ceil((float64(-at)+crossings/base)*float64(from)))+1)
		taps := make([]float32, 0, last-first+1)
		for k := first; k <= last; k++ {
			taps = append(taps, tap((at+float32(k)/float32(from))*float32(base), float32(base/float64(from))))
		}
		for i, start := phase, first; i < len(out); i, start = i+to, start+from {
			sum := float32(0)
			for k, weight := range taps {
				j := start + k
				if repeat {
					j = min(max(j, 0), len(x)-1)
				}
				if j >= 0 && j < len(x) {
					sum += weight * x[j]
				}
			}
			out[i] = sum
		}
	}
	return out
}

// crossings is how many zero crossings of the sinc are used on each side.
const crossings = 6

// tap returns the weight of an input at a time, in zero crossings, from the output. It is rounded as torch rounds it.
func tap(t, scale float32) float32 {
	t = min(max(t, -crossings), crossings)
	window := float32(math.Cos(float64(t * math.Pi / crossings / 2)))
	sinc := float32(1)
	if t *= math.Pi; t != 0 {
		sinc = float32(math.Sin(float64(t))) / t
	}
	return sinc * (window * window * scale)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
