package forecast

import (
	"fmt"
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

// TestGathersHideBehindOwnKeys checks that a gather is hidden as long as a rank attends to its own keys, 4 L^2 E / P^2
// operations in each of FLUX's 57 blocks, and that ranks which cannot hide it, or that circulate keys, hide nothing.
func TestGathersHideBehindOwnKeys(t *testing.T) {
	const tokens, width, blocks, steps = 4096 + 512, 24 * 128, 57, 28
	for _, c := range []struct {
		devices, plan string
		ranks         int
		hides         bool
	}{
		{"8xL40-pcie", "gather=8", 8, true},
		{"8xL40-pcie", "gather=8,overlap=off", 8, false},
		{"8xL40-pcie", "ring=8", 8, false},
		{"8xL40-pcie", "gather=8,deterministic=on", 8, false},
		{"2xH100-nvlink", "gather=2", 2, true},
	} {
		s := searchFor(t, "flux-dev", 1024, steps, c.devices)
		s.Device = s.Cluster.Device
		got, ring := s.Simulate(planOf(t, c.plan)), s.Simulate(planOf(t, fmt.Sprint("ring=", c.ranks)))
		own := float64(tokens / c.ranks)
		most := 4 * own * own * width * blocks * steps / s.Cluster.Device.Attention
		want := 0.
		if c.hides { // ranks send as much as around a ring, over as many hops
			want = min(most, ring.Ranks[0].Exchange)
		}
		if hidden := got.Ranks[0].Hidden; !near(hidden, want, 0.01*want) {
			t.Errorf("%s on %s hides %.4f s, want %.4f", c.plan, c.devices, hidden, want)
		}
	}
}

// TestGatherIsChosenForGroupedHeads checks that two ranks gather keys and values where four queries read each, which
// sends 2/5 of what exchanging heads does.
func TestGatherIsChosenForGroupedHeads(t *testing.T) {
	s := searchFor(t, "krea2-turbo", 1024, 8, "2xH100-nvlink")
	s.Exact = true
	got, heads := choose(t, s), TrafficByRank(s.Workload, planOf(t, "ulysses=2"), 2, 2)[0][plan.AxisUlysses]
	sent := got.Traffic[0][plan.AxisRing]
	if got.Best.Plan != planOf(t, "gather=2") || 5*sent.Bytes != 2*heads.Bytes || 2*sent.Calls != heads.Calls {
		t.Errorf("chose %s, which sends %+v where ulysses=2 sends %+v; want gather=2 with 2/5 of its bytes in "+
			"half of its calls", got.Best.Plan, sent, heads)
	}
}
