package parallel

import (
	"context"
	"errors"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/race"
)

// TestChosenPlanGivesTheSamePicture checks that ranks=N chooses a plan of at most N ranks, and more than one if N is,
// whose latent is that of one rank.
func TestChosenPlanGivesTheSamePicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestExactPlansEqualOneRank runs every kind of plan that is chosen")
	}
	e := newEngine(t)
	run := func(plan string) *request.Result {
		req := tinyRequest(t, "flux", 2, 24, 20, 2)
		req.Plan = plan
		out, err := e.Sample(context.Background(), req, nil)
		if err != nil {
			t.Fatalf("%s: %v", plan, err)
		}
		return out
	}
	want := run("").Latent.Data
	for _, text := range []string{"ranks=1", "ranks=2", "ranks=3", "ranks=4", "ranks=8,overlap=off"} {
		got := run(text)
		asked, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		name := got.Stats.Plan
		if name == "one rank" {
			name = ""
		}
		chosen, err := plan.Parse(name)
		if err != nil {
			t.Fatalf("%s: the statistics name the plan %q: %v", text, got.Stats.Plan, err)
		}
		if n := chosen.Ranks(); n > asked.Choose || asked.Choose > 1 && n == 1 || chosen.Choose != 0 ||
			chosen.Overlap != asked.Overlap {
			t.Errorf("%s: chose %s", text, got.Stats.Plan)
		}
		if d := relative(got.Latent.Data, want); !(d <= 1e-5) {
			t.Errorf("%s: %s is %g from one rank, want at most 1e-5", text, got.Stats.Plan, d)
		}
	}
}

// TestChooseMayGoStale checks that with stale=on a pipeline may be chosen, and is where links are slow.
func TestChooseMayGoStale(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: planning has no goroutines of its own")
	}
	e, err := NewPool(Config{NewOps: testOps, Devices: "L40-pcie"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	req := tinyRequest(t, "flux", 1, 128, 128, 28)
	for _, c := range []struct {
		plan string
		pipe bool
	}{{"ranks=8", false}, {"ranks=8,stale=on", true}} {
		req.Plan = c.plan
		p, err := e.whole.plan(req)
		if err != nil {
			t.Fatal(err)
		}
		if stale := p.Pipe > 1 && p.Patches > 1; stale != c.pipe {
			t.Errorf("%s: chose %s; stale keys and values %v, want %v", c.plan, p, stale, c.pipe)
		}
	}
}

// TestChooseIsRefused checks that ranks excludes degrees, and that stale needs ranks.
func TestChooseIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"ranks=4,ulysses=2": "ulysses=2", "ranks=2,form=scatter": "form=scatter", "ranks=65": "1 to 64", "ranks=0": "1 to 64",
		"stale=on": "ranks=4", "ranks=2,stale=perhaps": "off or on",
	} {
		_, err := plan.Parse(text)
		var refused *fault.Error
		if !errors.As(err, &refused) || refused.Code != fault.PlanRefused || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want a refusal that says %q", text, err, says)
		}
	}
}

// TestChoiceForAreas checks that requests with an area, which pipelines refuse, get the fastest plan without stages.
func TestChoiceForAreas(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: planning has no goroutines of its own")
	}
	e, err := NewPool(Config{NewOps: testOps, Devices: "L40-pcie"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := tinyRequest(t, "flux", 1, 128, 128, 28)
	r.Plan = "ranks=8,stale=on"
	if p, err := e.whole.plan(r); err != nil || p.Pipe == 1 {
		t.Fatalf("without an area chose %s (%v): this test needs a pipeline to win", p, err)
	}
	r.Branches[0].Entries[1].Area = request.Area{H: 64, W: 64}
	if p, err := e.whole.plan(r); err != nil || p.Pipe > 1 || p.Ranks() == 1 {
		t.Errorf("with an area chose %s (%v), want several ranks without stages", p, err)
	}
}
