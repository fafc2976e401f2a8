package media

import (
	"math"

	"patchbay/node/value"
)

// Resampled returns a sound at another rate, as torchaudio.functional.resample makes it: a sinc of six zero crossings
// on each side below a Hann window, cut off at 0.99 of the lower of the two bands.
func Resampled(a *value.Audio, rate int) *value.Audio {
	if a.Rate == rate {
		return a
	}
	const rolloff = 0.99
	g := gcd(a.Rate, rate)
	from, to := a.Rate/g, rate/g
	base := float64(min(from, to)) * rolloff
	width := int(math.Ceil(crossings * float64(from) / base))
	out := &value.Audio{B: a.B, C: a.C, N: (a.N*to + from - 1) / from, Rate: rate}
	out.Data = make([]float32, out.B*out.C*out.N)
	for phase := range min(to, out.N) {
		// The output of this phase in each period of from inputs is a sum over those near its time.
		at := -float32(phase) / float32(to)
		first := max(-width, int(math.Floor((float64(-at)-crossings/base)*float64(from)))-1)
		last := min(width+from-1, int(math.Ceil((float64(-at)+crossings/base)*float64(from)))+1)
		taps := make([]float32, 0, last-first+1)
		for k := first; k <= last; k++ {
			taps = append(taps, tap((at+float32(k)/float32(from))*float32(base), float32(base/float64(from))))
		}
		for c := range a.B * a.C {
			in, res := a.Data[c*a.N:(c+1)*a.N], out.Data[c*out.N:(c+1)*out.N]
			for i, start := phase, first; i < out.N; i, start = i+to, start+from {
				sum := float32(0)
				for k, weight := range taps {
					if j := start + k; j >= 0 && j < a.N {
						sum += weight * in[j]
					}
				}
				res[i] = sum
			}
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
