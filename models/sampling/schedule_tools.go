package sampling

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
)

// SplitSigmas implements the node of that name: the sigmas up to and including index step, and those from it on. With a
// step past the end, low is empty. Both results are copies.
func SplitSigmas(sigmas []float32, step int) (high, low []float32) {
	step = max(step, 0)
	high = append(high, sigmas[:min(step+1, len(sigmas))]...)
	low = append(low, sigmas[min(step, len(sigmas)):]...)
	return high, low
}

// SplitSigmasDenoise implements the node of that name: low keeps the last round(steps*denoise) steps, high the sigmas
// before them (none if low has a single sigma, as in ComfyUI). Both results are copies.
func SplitSigmasDenoise(sigmas []float32, denoise float64) (high, low []float32) {
	steps := max(len(sigmas)-1, 0)
	keep := int(math.RoundToEven(float64(steps) * min(max(denoise, 0), 1)))
	if keep > 0 {
		high = append(high, sigmas[:len(sigmas)-keep]...)
	}
	return high, append(low, tail(sigmas, keep+1)...)
}

// FlipSigmas implements the node of that name: a reversed copy, with a first value of 0 replaced by 0.0001.
func FlipSigmas(sigmas []float32) []float32 {
	out := slices.Clone(sigmas)
	slices.Reverse(out)
	if len(out) > 0 && out[0] == 0 {
		out[0] = 0.0001
	}
	return out
}

// SetFirstSigma implements the node of that name: a copy with the first value replaced. An empty list is an error.
func SetFirstSigma(sigmas []float32, sigma float64) ([]float32, error) {
	if len(sigmas) == 0 {
		return nil, fmt.Errorf("sigmas: the list is empty, there is no first sigma to set")
	}
	out := append([]float32(nil), sigmas...)
	out[0] = float32(sigma)
	return out, nil
}

// ExtendSigmas implements the node ExtendIntermediateSigmas: every interval that starts between endAt and startAt
// (below 0: no limit) is divided into steps parts with linear, cosine or sine spacing.
func ExtendSigmas(sigmas []float32, steps int, startAt, endAt float64, spacing string) ([]float32, error) {
	if steps < 1 || steps > 100 {
		return nil, fmt.Errorf("steps %d: want 1 to 100", steps)
	}
	if startAt < 0 {
		startAt = math.Inf(1)
	}
	quarter := func(w float32) float64 { return float64(mul(w, float32(math.Pi)) / 2) }
	var shape func(w float32) float32
	switch spacing {
	case "linear":
		shape = func(w float32) float32 { return w }
	case "cosine":
		shape = func(w float32) float32 { return float32(math.Sin(quarter(w))) }
	case "sine":
		shape = func(w float32) float32 { return 1 - float32(math.Cos(quarter(w))) }
	default:
		return nil, fmt.Errorf("spacing %q: want linear, cosine or sine", spacing)
	}
	ramp := linspace32(0, 1, steps+1)[1:steps]
	var out []float32
	for i, s := range sigmas {
		out = append(out, s)
		if i+1 == len(sigmas) || s < float32(endAt) || s > float32(startAt) {
			continue
		}
		for _, w := range ramp {
			out = append(out, mul(shape(w), sigmas[i+1]-s)+s)
		}
	}
	return out, nil
}

// ManualSigmas implements the node of that name: all decimal numbers in text, in order. Anything between them is
// ignored. A number with several points is an error.
func ManualSigmas(text string) ([]float32, error) {
	var out []float32
	for _, word := range regexp.MustCompile(`[-+]?\d*\.*\d+`).FindAllString(text, -1) {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, fmt.Errorf("sigmas: %q is not a number", word)
		}
		out = append(out, float32(v))
	}
	return out, nil
}
