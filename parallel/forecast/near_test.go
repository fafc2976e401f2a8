package forecast

import (
	"math"
	"testing"

	"patchbay/parallel/plan"
)

// near reports whether two numbers differ by at most the tolerance; NaN is near nothing.
func near(got, want, tolerance float64) bool { return math.Abs(got-want) <= tolerance }

func planOf(t *testing.T, text string) plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestNothingIsNearNaN checks that comparisons of predictions fail if a value is NaN.
func TestNothingIsNearNaN(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), 1.2, -1} {
		if near(v, 1, 0.1) || near(1, v, 0.1) {
			t.Errorf("%v is near 1", v)
		}
	}
	if !near(0.95, 1, 0.1) {
		t.Error("0.95 is not near 1")
	}
}
