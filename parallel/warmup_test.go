package parallel

import (
	"context"
	"testing"

	"patchbay/parallel/request"
)

// TestWarmupCountsEvaluationsThatRan checks that warm-up counts runs of the network: a step of Heun's method has two,
// and one answered from a cache none. Each rank's micro-steps show which evaluations were synchronous.
func TestWarmupCountsEvaluationsThatRan(t *testing.T) {
	e := newEngine(t)
	check := func(name string, r *request.Request) *request.Result {
		t.Helper()
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p := planOf(t, r.Plan)
		want := int64(p.Warmup + (got.Stats.Evaluations-p.Warmup)*p.Patches)
		for rank, n := range got.Stats.Tokens {
			if n.MicroSteps != want {
				t.Errorf("%s: rank %d did %d micro-steps, want %d: %d of %d evaluations in one piece, "+
					"the others in %d patches",
					name, rank, n.MicroSteps, want, p.Warmup, got.Stats.Evaluations, p.Patches)
			}
		}
		return got
	}

	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 8, 8, 4)
	r.Sampler, r.Plan = "heun", "pipe=2,patches=3,warmup=3"
	if n := check("heun", r).Stats.Evaluations; n != 7 {
		t.Errorf("heun: %d evaluations in 4 steps, want 7", n)
	}

	for _, rule := range []request.CacheRule{request.CacheEasy, request.CacheLazy} {
		r := cachedRequest(t, "flux-c", rule, 12)
		r.Cache.Start, r.Plan = 0, "pipe=2,patches=3,warmup=4"
		stats := check("cache", r).Stats
		if len(stats.Reused) == 0 || stats.Reused[0] >= 4 || stats.Evaluations <= 4 {
			t.Errorf("rule %d: %d evaluations ran, reused %v: this test needs more than four and one of the first four",
				rule, stats.Evaluations, stats.Reused)
		}
	}
}
