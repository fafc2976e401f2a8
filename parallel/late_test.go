package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/race"
)

// lateRequest returns a request with an entry in each branch that becomes active during the run, in evaluations 3 and
// 4 of 6. All four entries have different text lengths.
func lateRequest(t *testing.T, family string) (r *request.Request, text, starts []int) {
	t.Helper()
	text, starts = []int{13, 5, 7, 9}, []int{0, 3, 0, 4}
	r = tinyRequest(t, family, 1, 8, 8, 6)
	for i, n := range text {
		e := r.Branches[0].Entries[0]
		e.References = nil
		e.Context.Rows = n
		e.Context.Data = e.Context.Data[:n*e.Context.Cols]
		if at := starts[i]; at > 0 {
			e.Ranged, e.SigmaStart = true, r.Sigmas[at]
		}
		r.Branches[i/2].Entries = append(r.Branches[i/2].Entries[:i%2], e)
	}
	return r, text, starts
}

// TestLateEntriesAreSynchronousAtFirst checks that the evaluation in which an entry becomes active is synchronous for
// all entries and all cfg groups, as the entry has no keys and values yet, and that the evaluations before and after
// it run patch by patch. Tags show the age of every key and value read.
func TestLateEntriesAreSynchronousAtFirst(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for _, plan := range []string{
		"pipe=2,patches=3", "cfg=2,pipe=2,patches=3", "cfg=2,pipe=3,patches=2,warmup=2", "pipe=2,ulysses=2,patches=3",
		"pipe=2,ring=2,patches=2,sync=spread",
	} {
		r, text, starts := lateRequest(t, "flux")
		r.Plan = plan
		var active [][]int
		for e := range len(r.Sigmas) - 1 {
			var now []int
			for i, at := range starts {
				if at <= e {
					now = append(now, i)
				}
			}
			active = append(active, now)
		}
		checkReadings(t, r, text, active)
	}
}

// TestEntriesThatReturnAreSynchronous checks that the evaluation in which an entry returns to its sigma range is
// synchronous, as its keys and values are long outdated. The sigmas go down, up and down again.
func TestEntriesThatReturnAreSynchronous(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for _, plan := range []string{"pipe=2,patches=3", "cfg=2,pipe=2,patches=3"} {
		r, text, _ := lateRequest(t, "flux")
		r.Plan = plan
		r.Sigmas = []float32{1, 0.9, 0.5, 0.4, 0.8, 0.75, 0}
		for b := range r.Branches {
			for i := range r.Branches[b].Entries {
				r.Branches[b].Entries[i].Ranged = false
			}
		}
		away := &r.Branches[0].Entries[1]
		away.Ranged, away.SigmaStart, away.SigmaEnd = true, 1, 0.7
		active := [][]int{{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 2, 3}, {0, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}
		checkReadings(t, r, text, active)
	}
}

// checkReadings runs a request and compares what its attentions read with wantReadings. active lists the entries of
// every evaluation.
func checkReadings(t *testing.T, r *request.Request, text []int, active [][]int) {
	t.Helper()
	e, mu, seen := taggedEngine(t, true)
	p := planOf(t, r.Plan)
	if err := e.whole.assemble(p, r.Model.Spec); err != nil {
		t.Fatal(err)
	}
	for _, l := range e.whole.team.Members {
		rankOf(l).Ops.(*tagging).pos = rankOf(l).Pos
	}
	if _, err := e.Sample(context.Background(), r, nil); err != nil {
		t.Fatalf("%s: %v", r.Plan, err)
	}
	mu.Lock()
	defer mu.Unlock()
	want := wantReadings(r, p, text, active)
	for m, readings := range want {
		if got := seen[m]; fmt.Sprint(got) != fmt.Sprint(readings) {
			t.Errorf("%s, %s: attentions read\n%v\nwant\n%v", r.Plan, m, got, readings)
		}
	}
	for m := range seen {
		if want[m] == nil {
			t.Errorf("%s: %s ran, want synchronous evaluations where an entry begins alone", r.Plan, m)
		}
	}
}

// wantReadings returns what the attentions of every micro-step read, and how often, by definition: the evaluation of
// each row, text first.
func wantReadings(r *request.Request, p plan.Plan, text []int, active [][]int) map[plan.Micro]map[string]int {
	out := map[plan.Micro]map[string]int{}
	patches := plan.PatchRanges(slices.Max(text), r.Model.Spec.Tokens(r.Latent.Y, r.Latent.X), p.Patches)
	for e, now := range active {
		whole := e < p.Warmup
		for _, i := range now {
			whole = whole || !slices.Contains(active[e-1], i)
		}
		for m := range patches {
			micro := plan.Micro{Evaluation: e, Patch: m}
			if whole {
				micro = plan.Micro{Evaluation: e, Whole: true}
			}
			readings := map[string]int{}
			for _, i := range now {
				tags := strings.Repeat(fmt.Sprint(e, " "), text[i])
				for j, rows := range patches {
					made := e
					if !whole && j > m {
						made = e - 1
					}
					tags += strings.Repeat(fmt.Sprint(made, " "), rows.Len())
				}
				n := p.Ulysses * p.Ring
				if whole && p.Spread {
					n *= p.Pipe
				}
				readings[tags] = n * len(r.Model.Spec.Blocks)
			}
			out[micro] = readings
		}
	}
	return out
}
