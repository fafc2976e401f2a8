package parallel

import (
	"math"
	"testing"
)

// near reports whether two numbers differ by at most the tolerance; NaN is near nothing.
func near(got, want, tolerance float64) bool { return math.Abs(got-want) <= tolerance }

// decibels returns a ratio of powers in dB, or -Inf if it is NaN, so that a lower bound fails.
func decibels(signal, noise float64) float64 {
	if db := 10 * math.Log10(signal/noise); !math.IsNaN(db) {
		return db
	}
	return math.Inf(-1)
}

// TestNothingEqualsNaN checks that every comparison of results that the tests of this package rely on fails if a value
// on either side is NaN, or if values are missing.
func TestNothingEqualsNaN(t *testing.T) {
	nan := float32(math.NaN())
	good := []float32{1, -2, 3}
	for name, c := range map[string][2][]float32{
		"got":     {{1, nan, 3}, good},
		"first":   {{nan, -2, 3}, good},
		"want":    {good, {1, -2, nan}},
		"both":    {{1, nan, 3}, {1, nan, 3}},
		"shorter": {good[:2], good},
		"longer":  {good, good[:2]},
		"none":    {nil, good},
	} {
		got, want := c[0], c[1]
		if rel := relative(got, want); !(rel > 1) {
			t.Errorf("%s: relative gives %v", name, rel)
		}
		if at := firstDifference(got, want); at < 0 {
			t.Errorf("%s: firstDifference finds none", name)
		}
		for helper, db := range map[string]float64{
			"psnr": psnr(got, want), "snr": snr(got, want), "meanPSNR": meanPSNR([][]float32{good, got},
				[][]float32{good, want}),
		} {
			if !(db < 0) {
				t.Errorf("%s: %s gives %v dB", name, helper, db)
			}
		}
	}
	if db := meanPSNR(nil, nil); !(db < 0) {
		t.Errorf("no pictures: meanPSNR gives %v dB", db)
	}
	if relative(good, good) != 0 || firstDifference(good, good) >= 0 || psnr(good, good) < 100 || snr(good,
		good) < 100 {
		t.Error("equal values are told apart")
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), 1.2, -1} {
		if near(v, 1, 0.1) || near(1, v, 0.1) {
			t.Errorf("%v is near 1", v)
		}
	}
	if !near(0.95, 1, 0.1) {
		t.Error("0.95 is not near 1")
	}
}
