package parallel

import (
	"context"
	"testing"

	"patchbay/models/sampling"
	"patchbay/parallel/request"
)

// TestEverySamplerOnPatches checks that one sampler instance per patch, with shared random draws, gives the result of
// one instance over the whole latent, on an odd latent and with a mask, if all evaluations are synchronous.
func TestEverySamplerOnPatches(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestStalePipelineStaysClose runs patches with one sampler")
	}
	e := newEngine(t)
	g := openGolden(t, anyModel)
	for i, s := range sampling.Samplers() {
		if testing.Short() && i%5 != 0 {
			continue // the long form runs all 44
		}
		t.Run(s.Name, func(t *testing.T) {
			r := parityRequest(t, g, anyModel, 1, 5, 7, 4)
			r.Sampler = s.Name
			for _, b := range r.Branches {
				b.Entries = b.Entries[:1]
			}
			r.Mask = request.Latent{B: 1, C: 1, Y: 5, X: 7, Data: rectangle(5, 7)}
			want, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Plan = "pipe=2,patches=3,warmup=1000"
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-4 {
				t.Errorf("relative difference to one rank %.3g, bound 1e-4", rel)
			}
			if got.Stats.Evaluations != want.Stats.Evaluations {
				t.Errorf("%d evaluations, one rank %d", got.Stats.Evaluations, want.Stats.Evaluations)
			}
		})
	}
}
