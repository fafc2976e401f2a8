package parallel

import (
	"context"
	"slices"
	"strings"
	"testing"
)

// TestResync: a threshold that nothing reaches changes no bit; one that everything exceeds makes every evaluation synchronous and the answer that of one rank;
// one between gives the same again after another job, and ranks do the micro-steps that the count of synchronous evaluations says.
func TestResync(t *testing.T) {
	e := newEngine(t)
	const steps = 8
	for _, c := range [][3]string{
		{"flux-c", "pipe=2,patches=4", ",resync=25"},
		{"flux-c", "pipe=3,patches=3,warmup=2", ",resync=25"},
		{"flux-c", "cfg=2,pipe=2,patches=2,ulysses=2", ",resync=25"},
		{"flux-c", "pipe=2,patches=4,sync=spread", ",resync=25"},
		{"hydit-a", "pipe=3,patches=4", ",resync=9"},
		{"hydit-a", "pipe=2,patches=3,sync=spread", ",resync=9"},
	} {
		plan := c[1]
		r := parityRequest(t, openGolden(t, c[0]), c[0], 1, 8, 10, steps)
		one, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := ParsePlan(plan)
		if err != nil {
			t.Fatal(err)
		}
		run := func(plan string) *Result {
			t.Helper()
			q := *r
			q.Plan = plan
			res, err := e.Sample(context.Background(), &q, nil)
			if err != nil {
				t.Fatalf("%s: %v", plan, err)
			}
			want := int64(len(res.Stats.Synchronous) + (steps-len(res.Stats.Synchronous))*p.Patches)
			for rank, n := range res.Stats.Tokens {
				if n.MicroSteps != want {
					t.Errorf("%s: rank %d did %d micro-steps, %v synchronous evaluations make %d", plan, rank, n.MicroSteps, res.Stats.Synchronous, want)
				}
			}
			return res
		}
		stale := run(plan)
		if len(stale.Stats.Synchronous) != p.Warmup {
			t.Errorf("%s: synchronous evaluations %v, warm-up is %d", plan, stale.Stats.Synchronous, p.Warmup)
		}
		if huge := run(plan + ",resync=1000"); !slices.Equal(huge.Latent.Data, stale.Latent.Data) {
			t.Errorf("%s: resync=1000 changes the answer", plan)
		}
		tiny := run(plan + ",resync=1")
		if rel := relative(tiny.Latent.Data, one.Latent.Data); len(tiny.Stats.Synchronous) != steps || rel > 1e-5 {
			t.Errorf("%s: resync=1 makes evaluations %v synchronous, relative difference to one rank %.3g: want all %d and 1e-5", plan, tiny.Stats.Synchronous, rel, steps)
		}
		first := run(plan + c[2])
		run(plan)
		again := run(plan + c[2])
		if n := len(first.Stats.Synchronous); n <= p.Warmup || n >= steps {
			t.Errorf("%s%s makes evaluations %v synchronous, want more than the warm-up and less than all", plan, c[2], first.Stats.Synchronous)
		}
		if !slices.Equal(first.Latent.Data, again.Latent.Data) || !slices.Equal(first.Stats.Synchronous, again.Stats.Synchronous) {
			t.Errorf("%s%s gives another answer the second time", plan, c[2])
		}
	}
}

// TestResyncedStoresHoldWhatTheTableSays: after synchronous evaluations in mid-run the age of everything read is that of the table.
func TestResyncedStoresHoldWhatTheTableSays(t *testing.T) {
	between := 0
	for _, plan := range []string{"pipe=2,patches=4,resync=30", "pipe=2,patches=4,resync=45", "pipe=3,patches=3,resync=60", "pipe=2,ulysses=2,patches=2,sync=spread,resync=90"} {
		e, mu, seen := taggedEngine(t)
		r := tinyRequest(t, "flux", 1, 8, 8, 9)
		r.Sigmas = []float32{1, 0.99, 0.98, 0.97, 0.5, 0.49, 0.48, 0.1, 0.09, 0} // long steps between short ones
		r.Branches, r.Guider = []Branch{{Name: "positive", Entries: r.Branches[0].Entries[:1]}}, Guider{Kind: GuideBasic}
		r.Plan = plan
		p, err := ParsePlan(plan)
		if err != nil {
			t.Fatal(err)
		}
		w := workloadOf(r)
		if err := e.assemble(p, w.Spec); err != nil {
			t.Fatal(err)
		}
		for _, l := range e.team.links {
			l.rank.ops.(*tagging).pos = l.rank.pos
		}
		res, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		synced := res.Stats.Synchronous
		t.Logf("%s: synchronous %v", plan, synced)
		for _, e := range synced {
			if e > 1 && !slices.Contains(synced, e-1) {
				between++
			}
		}
		table := freshnessTable(p.Patches, w.Evaluations, func(e int) bool { return slices.Contains(synced, e) })
		mu.Lock()
		compareTagsWith(t, plan, w, p, seen, table)
		mu.Unlock()
	}
	if between == 0 {
		t.Error("no evaluation was synchronous behind a stale one: the test shows nothing")
	}
}

func TestRelativeChange(t *testing.T) {
	if got := relativeChange([]float32{1, -2, 3, 0}, []float32{2, -2, 1, 5}); got != 0.8 {
		t.Errorf("got %v, want (1+0+2+5)/(2+2+1+5) = 0.8", got)
	}
	if got := relativeChange([]float32{1}, nil); got != 0 {
		t.Errorf("without anything before: %v, want 0", got)
	}
}

func TestResyncRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"resync=20":                     "pipe=2",
		"ulysses=4,resync=20":           "pipe=2",
		"pipe=4,patches=1,resync=20":    "patches=4",
		"pipe=2,patches=4,resync=1001":  "from 0 to 1000",
		"pipe=2,patches=4,resync=-1":    "from 0 to 1000",
		"pipe=2,patches=4,resync=1.5":   "whole number",
		"ranks=4,resync=20":             "leave",
		"pipe=2,patches=4,resync=often": "whole number",
	} {
		if _, err := ParsePlan(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a refusal that names %q", text, err, want)
		}
	}
	p, err := ParsePlan("pipe=2,patches=4,resync=20")
	if err != nil || p.Resync != 20 || p.String() != "pipe=2,patches=4,warmup=1,resync=20" {
		t.Errorf("got %s (%v), want pipe=2,patches=4,warmup=1,resync=20", p, err)
	}
	if p, err = ParsePlan("pipe=2,patches=4,resync=0"); err != nil || p.String() != "pipe=2,patches=4,warmup=1" {
		t.Errorf("resync=0: got %s (%v), want it to be off", p, err)
	}
}
