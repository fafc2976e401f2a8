package parallel

import (
	"context"
	"testing"

	"patchbay/parallel/request"
)

// TestStalePicturesDependOnPatchesAlone checks that patches and warm-up alone decide what is stale: any number of
// stages, and any split of the rest, give the same picture.
func TestStalePicturesDependOnPatchesAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("long: many numbers of stages; TestStalePipelineStaysClose has some")
	}
	plans := []string{
		"pipe=3", "pipe=4,overlap=off", "cfg=2,data=2,pipe=2", "cfg=3,pipe=3,sync=spread", "pipe=3,ring=2,ulysses=2",
		"pipe=2,ulysses=3,sync=spread",
		"pipe=2,tensor=2", "pipe=2,ring=2,tensor=3,form=scatter", "cfg=2,pipe=4,shard=on",
	}
	for k, name := range splitNames(t) {
		e := newEngine(t)
		r := flatRequest(t, name, 4)
		late := &r.Branches[0].Entries[1]
		late.Ranged, late.SigmaStart = true, r.Sigmas[2]
		r.Plan = "pipe=2,patches=3"
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, plan := range everyNth(plans, k, 8) {
			r := *r
			r.Plan = plan + ",patches=3"
			got, err := e.Sample(context.Background(), &r, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", name, r.Plan, err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel > 2e-5 {
				t.Errorf("%s %s: relative difference to pipe=2 %.3g, bound 2e-5", name, r.Plan, rel)
			}
		}
		r.Plan = ""
		exact, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rel := relative(want.Latent.Data, exact.Latent.Data); rel < 1e-3 {
			t.Errorf("%s: stale values change the picture by %.3g only: this test needs a picture that shows them",
				name, rel)
		}
	}
}

// flatRequest is tinyRequest on the few tokens that PixArt accepts, whose rows plus columns must exceed 65.
func flatRequest(t *testing.T, family string, steps int) *request.Request {
	t.Helper()
	y, x := 9, 8
	switch family {
	case "pixart":
		y, x = 4, 62
	case "hunyuandit":
		y = 10
	}
	return tinyRequest(t, family, 2, y, x, steps)
}
