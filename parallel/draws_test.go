package parallel

import (
	"context"
	"testing"

	"patchbay/models/sampling"
)

// TestDrawsDoNotDependOnTheDataDegree checks that samplers that draw noise between steps give every picture of a batch
// the same draws, however the batch is divided among ranks.
func TestDrawsDoNotDependOnTheDataDegree(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every sampler; TestExactPlansEqualOneRank divides batches")
	}
	e := newEngine(t)
	g := openGolden(t, anyModel)
	for _, name := range []string{"euler_ancestral", "dpmpp_2m_sde", "euler"} {
		r := parityRequest(t, g, anyModel, 3, 6, 7, 3)
		r.Sampler = name
		if name == "euler" {
			sampler, err := sampling.FindSampler(name)
			if err != nil {
				t.Fatal(err)
			}
			if r.Options, err = sampler.NewOptions(map[string]any{"s_churn": 1.0}); err != nil {
				t.Fatal(err)
			}
			r.NoiseDraws = []int{len(r.Noise.Data)}
		}
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		other := *r
		if other.Seed++; name == "euler" {
			other.NoiseDraws = nil
		}
		if got, err := e.Sample(context.Background(), &other, nil); err != nil || relative(got.Latent.Data,
			want.Latent.Data) < 1e-3 {
			t.Fatalf("%s draws nothing: error %v", name, err)
		}
		for _, plan := range []string{
			"data=1", "data=2", "data=3", "data=3,cfg=2",
			"data=2,pipe=2,patches=3,warmup=99",
		} {
			r.Plan = plan
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-5 {
				t.Errorf("%s, %s: relative difference to one rank %.3g, bound 1e-5", name, plan, rel)
			}
		}
	}
}
