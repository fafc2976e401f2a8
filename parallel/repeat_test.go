package parallel

import (
	"context"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/request"
)

// TestOrderOfRequestsDoesNotMatter runs requests A, B, a larger one and A on one engine. Both runs of A have the same
// bits, and B has those of a fresh engine: no request leaves anything for the next one, even with stale values, late
// entries and cached outputs, or with other sizes and types in between.
func TestOrderOfRequestsDoesNotMatter(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every kind of request twice; TestStalePipelineStaysClose repeats one")
	}
	for _, c := range []struct{ family, plan string }{
		{"flux", "ulysses=3"},
		{"flux", "cfg=2,pipe=2,patches=3"},
		{
			"flux",
			"pipe=2,ring=2,patches=3,sync=spread,kv=fp8",
		},
		{"sd3", "pipe=3,patches=2,shard=on"},
		{"pixart", "pipe=2,tensor=2,form=scatter,patches=4"},
		{
			"hunyuandit",
			"pipe=3,patches=2,sync=spread",
		},
	} {
		if testing.Short() && c.family != "flux" && c.family != "hunyuandit" {
			continue
		}
		e, fresh := newEngine(t), newEngine(t)
		run := func(e *Pool, r *request.Request) []float32 {
			t.Helper()
			res, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatalf("%s %q: %v", c.family, c.plan, err)
			}
			return res.Latent.Data
		}
		a := flatRequest(t, c.family, 4)
		a.Plan = c.plan
		late := &a.Branches[0].Entries[1]
		late.Ranged, late.SigmaStart = true, a.Sigmas[2]
		b := *a // as large, with other contents
		b.Latent.Data = slices.Clone(a.Latent.Data)
		slices.Reverse(b.Latent.Data)
		b.Branches = nil
		for _, br := range a.Branches {
			br.Entries = slices.Clone(br.Entries)
			for i := range br.Entries {
				c := &br.Entries[i].Context
				c.Data = slices.Clone(c.Data)
				slices.Reverse(c.Data)
			}
			b.Branches = append(b.Branches, br)
		}
		wide := *flatRequest(t, c.family, 3) // larger, of another type
		wide.Latent = request.NewLatent(2, a.Latent.C, a.Latent.Y+4, a.Latent.X+2)
		wide.Plan, wide.Compute = c.plan, engine.BF16

		first := run(e, a)
		between := run(e, &b)
		run(e, &wide)
		if again := run(e, a); !slices.Equal(again, first) {
			t.Errorf("%s %q: run 4 differs from the first by %.3g", c.family, c.plan, relative(again, first))
		}
		if want := run(fresh, &b); !slices.Equal(between, want) {
			t.Errorf("%s %q: the request in between differs by %.3g from its run on a fresh engine", c.family, c.plan,
				relative(between, want))
		}
		if rel := relative(between, first); rel < 1e-2 {
			t.Fatalf("%s %q: the two requests differ by %.3g only", c.family, c.plan, rel)
		}
	}
}
