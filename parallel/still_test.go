package parallel

import (
	"context"
	"testing"
)

// TestStaleValuesOfAStillPicture checks that while sigma and latent do not change, patches with stale values give the
// answer of one rank, as the keys and values of the previous evaluation equal the current ones. Anything that a
// patch's micro-step takes from the wrong place shows: rows, positions, text, skips, stores.
func TestStaleValuesOfAStillPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every plan with stages; TestStalePipelineStaysClose has some")
	}
	plans := []string{
		"pipe=4,patches=7", "pipe=2,ulysses=3,patches=3", "pipe=3,ring=2,ulysses=2,patches=4,sync=spread",
		"pipe=2,tensor=2,patches=3",
		"pipe=2,ulysses=2,tensor=3,form=scatter,patches=5", "cfg=2,data=2,pipe=2,ring=3,patches=2,shard=on",
	}
	for k, f := range families(t) {
		e := newEngine(t)
		r := flatRequest(t, f.name, 1)
		sigma := r.Sigmas[0] / 2
		r.Sigmas = []float32{sigma, sigma, sigma, 0}
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, plan := range everyNth(plans, k, 6) {
			r := *r
			r.Plan = plan
			got, err := e.Sample(context.Background(), &r, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", f.name, plan, err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-5 {
				t.Errorf("%s %s: relative difference to one rank %.3g, bound 1e-5", f.name, plan, rel)
			}
			p := planOf(t, plan)
			if n := got.Stats.Tokens[0].MicroSteps; n != int64(1+2*p.Patches) {
				t.Errorf("%s %s: %d micro-steps, want one evaluation in one piece and two in %d patches", f.name, plan,
					n, p.Patches)
			}
		}
	}
}
