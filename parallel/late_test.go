package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/parallel/plan"
)

// lateRequest has an entry in each branch that becomes active in mid-run, in evaluations 3 and 4 of 6. Text lengths
// tell all four apart.
func lateRequest(t *testing.T, family string) (r *Request, text, starts []int) {
	t.Helper()
	text, starts = []int{13, 5, 7, 9}, []int{0, 3, 0, 4}
	r = tinyRequest(t, family, 1, 8, 8, 6)
	for i, n := range text {
		e := r.Branches[0].Entries[0]
		e.Context.Rows = n
		e.Context.Data = e.Context.Data[:n*e.Context.Cols]
		if at := starts[i]; at > 0 {
			e.Ranged, e.SigmaStart = true, r.Sigmas[at]
		}
		r.Branches[i/2].Entries = append(r.Branches[i/2].Entries[:i%2], e)
	}
	return r, text, starts
}

// TestLateEntriesAreSynchronousAtFirst: the evaluation in which an entry becomes active is synchronous for all entries
// and all cfg groups, as the entry has no keys and values yet; those before and behind it run patch by patch. Tags tell
// the age of every key and value that was read.
func TestLateEntriesAreSynchronousAtFirst(t *testing.T) {
	for _, plan := range []string{
		"pipe=2,patches=3", "cfg=2,pipe=2,patches=3", "cfg=2,pipe=3,patches=2,warmup=2", "pipe=2,ulysses=2,patches=3",
		"pipe=2,ring=2,patches=2,sync=spread",
	} {
		e, mu, seen := taggedEngine(t)
		r, text, starts := lateRequest(t, "flux")
		r.Plan = plan
		p := planOf(t, plan)
		if err := e.assemble(p, r.Model.Spec); err != nil {
			t.Fatal(err)
		}
		for _, l := range e.team.members {
			rankOf(l).Ops.(*tagging).pos = rankOf(l).Pos
		}
		if _, err := e.Sample(context.Background(), r, nil); err != nil {
			t.Fatalf("%s: %v", plan, err)
		}
		mu.Lock()
		defer mu.Unlock()
		want := lateReadings(r, p, text, starts)
		for m, readings := range want {
			if got := seen[m]; fmt.Sprint(got) != fmt.Sprint(readings) {
				t.Errorf("%s, %s: attentions read\n%v\nwant\n%v", plan, m, got, readings)
			}
		}
		for m := range seen {
			if want[m] == nil {
				t.Errorf("%s: %s ran, want synchronous evaluations at warm-up, 3 and 4 alone", plan, m)
			}
		}
	}
}

// lateReadings is what the attentions of every micro-step read, worked out from the definition: evaluations by row,
// text first, and how often.
func lateReadings(r *Request, p plan.Plan, text, starts []int) map[plan.Micro]map[string]int {
	out := map[plan.Micro]map[string]int{}
	patches := plan.PatchRanges(slices.Max(text), r.Model.Spec.Tokens(r.Latent.Y, r.Latent.X), p.Patches)
	for e := range len(r.Sigmas) - 1 {
		whole := e < p.Warmup || slices.Contains(starts, e)
		for m := range patches {
			micro := plan.Micro{Evaluation: e, Patch: m}
			if whole {
				micro = plan.Micro{Evaluation: e, Whole: true}
			}
			readings := map[string]int{}
			for i := range text {
				if starts[i] > e {
					continue
				}
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
