package audio

import (
	"math"
	"slices"
	"testing"

	"patchbay/tests/golden"
)

// TestFilter compares the filter with torch's.
func TestFilter(t *testing.T) {
	var models map[string]struct {
		Taps []float32 `json:"filters_12_taps"`
	}
	if err := golden.JSON("h3/weights_vae.json", &models); err != nil {
		t.Fatal(err)
	}
	want, got := models["h3audio-a"].Taps, filter()
	if len(want) != len(got) {
		t.Fatalf("%d taps are recorded", len(want))
	}
	for i, f := range want {
		if d := math.Abs(float64(got[i] - f)); !(d < 1e-7) {
			t.Errorf("tap %d is %v, want %v", i, got[i], f)
		}
	}
}

// TestSmooth compares the activation with its definition: the sound with edges repeated and zeros between its samples
// goes through the filter, then the snake, then the filter again, of whose result every second sample stays. Lengths
// are shorter and longer than the filter, and the longest is computed in parts.
func TestSmooth(t *testing.T) {
	const c = 3
	alpha, beta := []float32{0.5, 1, 2}, []float32{1.5, 0.7, 1}
	for _, n := range []int{1, 2, 5, 40, 9000} {
		x := golden.Fill("smooth", n*c, 3, 0)
		taps := filter()
		a := activation{alpha: alpha, beta: beta, up: taps[:], down: taps[:]}
		got := a.smooth(slices.Clone(x))
		for k := range c {
			at := func(i int) float64 { return float64(x[min(max(i, 0), n-1)*c+k]) }
			wide := make([]float64, 2*n)
			for m := range wide {
				for i := max(-8, m/2-8); i < min(n+8, m/2+8); i++ {
					if tap := m + 5 - 2*i; tap >= 0 && tap < filterTaps {
						wide[m] += 2 * float64(taps[tap]) * at(i)
					}
				}
			}
			for m, f := range wide {
				s := math.Sin(float64(alpha[k]) * f)
				wide[m] = f + s*s/float64(beta[k])
			}
			for i := range n {
				want := 0.0
				for j, tap := range taps {
					want += float64(tap) * wide[min(max(2*i+j-5, 0), 2*n-1)]
				}
				if d := math.Abs(float64(got[i*c+k]) - want); !(d < 1e-5) {
					t.Fatalf("%d samples, channel %d: sample %d is %v, want %v", n, k, i, got[i*c+k], want)
				}
			}
			if n > 1000 {
				break // the others are alike
			}
		}
	}
}
