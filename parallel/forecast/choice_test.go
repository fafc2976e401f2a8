package forecast

import (
	"testing"

	"patchbay/parallel/plan"
)

// TestChoiceKnowsExactPlans checks that a plan counts as exact if nothing stale is ever read: without stages, with one
// patch, or with warm-up for all evaluations.
func TestChoiceKnowsExactPlans(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 4, "4xH100-nvlink")
	for plan, want := range map[string]bool{
		"": true, "ulysses=4": true, "pipe=2,patches=1": true, "pipe=2,patches=1,warmup=0": true,
		"pipe=2,patches=2,warmup=4": true,
		"pipe=2,patches=2,warmup=5": true, "pipe=2,patches=2,warmup=3": false, "pipe=2": false,
	} {
		got, err := s.Predict(planOf(t, plan))
		if err != nil {
			t.Fatal(err)
		}
		if got.Best.Exact != want {
			t.Errorf("%q in 4 evaluations: exact is %v, want %v", plan, got.Best.Exact, want)
		}
	}
}

// TestChoiceTellsTheTimeOfOneRank checks that the time with which the choice is compared is that of one device, or 0
// if the model does not fit one.
func TestChoiceTellsTheTimeOfOneRank(t *testing.T) {
	for model, size := range map[string]int{"pixart-alpha": 1024, "flux-dev": 2048} {
		s := searchFor(t, model, size, 4, "4x4090-pcie")
		one := s.Simulate(plan.OneRank())
		want := one.Seconds
		if model == "flux-dev" {
			want = 0
		}
		if got := choose(t, s); got.OneRank != want || got.Best.Plan.Ranks() == 1 {
			t.Errorf("%s: chose %s, says one device takes %.6f s, want %.6f s and more than one device", model,
				got.Best.Plan, got.OneRank, want)
		}
	}
}
