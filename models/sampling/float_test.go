package sampling

import (
	"math"
	"testing"
)

// TestLogitIsTorchs compares lambda of flow models with torch 2.9.1's logit on x86, bit by bit. In the first twelve
// cases torch's result is not the float32 nearest to the exact value.
func TestLogitIsTorchs(t *testing.T) {
	m := goldenModel(t, "sd3")
	for _, c := range [][2]float32{
		{0.856369, 1.785454},
		{0.97316206, 3.590734},
		{0.727957, 0.9842819},
		{0.23075092, -1.204076},
		{0.7144067, 0.9168837},
		{0.5832064, 0.33595014},
		{0.45479548, -0.18131316},
		{0.5948879, 0.38420928},
		{0.59037447, 0.36551368},
		{0.81922406, 1.5110992},
		{0.17020935, -1.5841444},
		{0.8396955, 1.6559644},
		{0.8302519, 1.5874134},
		{0.12611091, -1.9357917},
		{0.9074697, 2.283124},
		{0.81992704, 1.5158533},
		{0.92010343, 2.4437532},
		{0.11664522, -2.02459},
		{0.16439152, -1.6259093},
		{0.7379194, 1.0351825},
	} {
		if got := -m.halfLogSNR(c[0]); got != c[1] {
			t.Errorf("logit of %v: %v, torch says %v", c[0], got, c[1])
		}
	}
	for _, x := range []float32{0, -1, 1e-42, float32(math.Inf(1)), float32(math.NaN()), 1} {
		got, want := log32(x), float32(math.Log(float64(x)))
		if got != want && !(got != got && want != want) {
			t.Errorf("log of %v: %v, want %v", x, got, want)
		}
	}
}
