package parallel

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// cachedRequest is parityRequest with a cache that reuses about half of the evaluations.
func cachedRequest(t *testing.T, name string, rule request.CacheRule, steps int) *request.Request {
	t.Helper()
	r := parityRequest(t, openGolden(t, name), name, 2, 9, 10, steps)
	r.Cache = &request.Cache{Rule: rule, Threshold: 1, Start: 0.15, End: 0.95, Verbose: true}
	return r
}

// TestCacheOnExactPlans checks that every exact plan, pipelines included, which decide from the whole latent, reuses
// the evaluations that one rank does, gives its result, and gives the same bits in a second run after another job.
// TestCacheMatchesComfyUI checks which evaluations those are.
func TestCacheOnExactPlans(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestCacheTakesInLateEntries has the rule on one plan")
	}
	e := newEngine(t)
	plans := []string{
		"ulysses=3", "ring=2", "cfg=3", "cfg=2,ulysses=2", "data=2", "tensor=2", "tensor=2,form=scatter",
		"ulysses=2,shard=on",
		"pipe=2,patches=4,warmup=99", "cfg=2,pipe=2,patches=2,warmup=99", "pipe=2,patches=3,warmup=99,sync=spread",
		"pipe=2,patches=1",
	}
	for k, c := range []struct {
		model string
		rule  request.CacheRule
	}{
		{"flux-c", request.CacheEasy},
		{anyModel, request.CacheLazy},
		{"sd3-a", request.CacheEasy},
		{"hydit-a", request.CacheLazy},
	} {
		r := cachedRequest(t, c.model, c.rule, 8)
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(want.Stats.Reused); n < 1 || n > 5 {
			t.Fatalf("%s: one rank reuses evaluations %v of 8: want 1 to 5 of them", c.model, want.Stats.Reused)
		}
		other := *r
		other.Seed, other.Cache = 5, nil
		for _, plan := range everyNth(plans, k, 6) {
			r := *r
			r.Plan, other.Plan = plan, plan
			var first []float32
			for run := range 2 {
				got, err := e.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatalf("%s %s: %v", c.model, plan, err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-5 {
					t.Errorf("%s %s: relative difference to one rank %.3g, bound 1e-5", c.model, plan, rel)
				}
				if !slices.Equal(got.Stats.Reused, want.Stats.Reused) {
					t.Errorf("%s %s: reuses evaluations %v, one rank %v", c.model, plan, got.Stats.Reused, want.Stats.Reused)
				}
				// from the same elements, or another threshold would decide otherwise
				if !slices.EqualFunc(got.Stats.Changes, want.Stats.Changes, func(a, b request.CacheChange) bool {
					return near(float64(a.Total), float64(b.Total), 1e-4)
				}) {
					t.Errorf("%s %s: expects changes %+v, one rank %+v", c.model, plan, got.Stats.Changes, want.Stats.Changes)
				}
				if first == nil {
					first = got.Latent.Data
				}
				if !slices.Equal(first, got.Latent.Data) {
					t.Errorf("%s %s: the second run differs", c.model, plan)
				}
				if run > 0 {
					break
				}
				if _, err := e.Sample(context.Background(), &other, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestCacheOnPatches checks that the first patch decides for all, and that reused evaluations send nothing to any
// rank: every rank does only the micro-steps of the evaluations that ran.
func TestCacheOnPatches(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestCacheTakesInLateEntries has the rule on one plan")
	}
	e := newEngine(t)
	for _, rule := range []request.CacheRule{request.CacheEasy, request.CacheLazy} {
		for _, text := range []string{
			"pipe=2,patches=4", "pipe=3,patches=3,warmup=2", "cfg=2,pipe=2,patches=2,ulysses=2",
			"pipe=2,patches=4,sync=spread",
		} {
			r := cachedRequest(t, anyModel, rule, 12)
			r.Plan = text
			p, err := plan.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			var first *request.Result
			for range 2 {
				got, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				if first == nil {
					first = got
				}
				if !slices.Equal(first.Latent.Data, got.Latent.Data) || !slices.Equal(first.Stats.Reused, got.Stats.Reused) {
					t.Errorf("%s: the second run differs", text)
				}
			}
			st := first.Stats
			if len(st.Reused) < 2 || st.Evaluations+len(st.Reused) != 12 {
				t.Errorf("%s: %d evaluations ran and %v were reused, want 12 together, at least 2 of them reused", text,
					st.Evaluations, st.Reused)
			}
			want := int64(p.Warmup + (st.Evaluations-p.Warmup)*p.Patches)
			for rank, n := range st.Tokens {
				if n.MicroSteps != want {
					t.Errorf("%s: rank %d did %d micro-steps, want %d: %d evaluations ran", text, rank, n.MicroSteps,
						want, st.Evaluations)
				}
			}
			if len(st.Changes) < len(st.Reused) {
				t.Errorf("%s: %d changes recorded, %d evaluations reused", text, len(st.Changes), len(st.Reused))
			}
			for _, c := range st.Changes {
				if c.Reused != slices.Contains(st.Reused, c.Evaluation) || c.Reused && !(c.Total < r.Cache.Threshold) {
					t.Errorf("%s: the record says %+v, reused are %v", text, c, st.Reused)
				}
			}
		}
	}
}

// TestCachedStoresHoldWhatTheTableSays checks that reused evaluations leave the stores unchanged, so that what the
// others read is as old as the table says, counted in evaluations that ran.
func TestCachedStoresHoldWhatTheTableSays(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestLateEntriesAreSynchronousAtFirst follows the age of every value on one plan")
	}
	for _, text := range []string{
		"pipe=2,patches=4", "pipe=3,patches=3,warmup=2",
		"pipe=2,ulysses=2,patches=2,sync=spread",
	} {
		e, mu, seen := taggedEngine(t, false)
		r := tinyRequest(t, "flux", 1, 8, 8, 9)
		r.Branches, r.Guider = []request.Branch{{
			Name:    "positive",
			Entries: r.Branches[0].Entries[:1],
		}}, request.Guider{Kind: request.GuideBasic}
		r.Cache, r.Plan = &request.Cache{Threshold: 3, End: 1}, text
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		w := workloadOf(r)
		if err := e.whole.assemble(p, w.Spec); err != nil {
			t.Fatal(err)
		}
		for _, l := range e.whole.team.Members {
			rankOf(l).Ops.(*tagging).pos = rankOf(l).Pos
		}
		res, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Stats.Reused) == 0 || res.Stats.Evaluations < 3 {
			t.Fatalf("%s: %d evaluations ran, reused %v: want both", text, res.Stats.Evaluations, res.Stats.Reused)
		}
		w.Evaluations = res.Stats.Evaluations
		mu.Lock()
		compareTags(t, text, w, p, seen)
		mu.Unlock()
	}
}

// TestCacheWithAreas checks that with entries of different sizes every evaluation runs, as in ComfyUI, whose cache
// then resets in each of them.
func TestCacheWithAreas(t *testing.T) {
	e := newEngine(t)
	r := cachedRequest(t, "sd3-a", request.CacheEasy, 8)
	r.Branches[0].Entries[1].Mask, r.Branches[0].Entries[1].Area = request.Latent{}, request.Area{H: 6, W: 8, Y: 2, X: 2}
	plain := *r
	plain.Cache = nil
	want, err := e.Sample(context.Background(), &plain, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Stats.Reused) > 0 || !slices.Equal(got.Latent.Data, want.Latent.Data) {
		t.Errorf("reused %v, want none and the picture of a run without cache", got.Stats.Reused)
	}
	for i := range r.Branches { // one size for all: the cache works, on all elements of the area
		for k := range r.Branches[i].Entries {
			r.Branches[i].Entries[k].Mask, r.Branches[i].Entries[k].Area = request.Latent{}, request.Area{H: 7, W: 8, Y: 2, X: 1}
		}
	}
	if got, err = e.Sample(context.Background(), r, nil); err != nil {
		t.Fatal(err)
	}
	if len(got.Stats.Reused) == 0 {
		t.Errorf("entries of one area: nothing was reused, changes %+v", got.Stats.Changes)
	}
}

// TestCacheTakesInLateEntries checks that an evaluation in which an entry becomes active is not reused.
func TestCacheTakesInLateEntries(t *testing.T) {
	e := newEngine(t)
	for _, plan := range []string{"", "pipe=2,patches=4"} {
		r := cachedRequest(t, anyModel, request.CacheEasy, 12)
		r.Cache.Threshold, r.Plan = 100, plan
		late := &r.Branches[0].Entries[1]
		late.Ranged, late.SigmaStart, late.SigmaEnd = true, r.Sigmas[7], 0
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(got.Stats.Reused, 7) || !slices.Contains(got.Stats.Reused, 6) ||
			!slices.Contains(got.Stats.Reused, 8) {
			t.Errorf("plan %q: reused %v, want 6 and 8 but not 7, where an entry is new", plan, got.Stats.Reused)
		}
	}
}

func TestCacheRefusals(t *testing.T) {
	e := newEngine(t)
	nan := math.NaN()
	for _, c := range []struct {
		cache request.Cache
		field string
	}{
		{request.Cache{Threshold: -1}, "cache.threshold"},
		{request.Cache{Threshold: float32(nan)}, "cache.threshold"},
		{request.Cache{Threshold: float32(math.Inf(1))}, "cache.threshold"},
		{request.Cache{Start: -0.1}, "cache"},
		{request.Cache{End: 1.1}, "cache"},
		{request.Cache{End: nan}, "cache"},
		{request.Cache{Rule: 7}, "cache"},
	} {
		r := cachedRequest(t, anyModel, request.CacheEasy, 2)
		r.Cache = &c.cache
		_, err := e.Sample(context.Background(), r, nil)
		var refused *fault.Error
		if !errors.As(err, &refused) || refused.Code != fault.BadInput || refused.Field != c.field ||
			!strings.Contains(refused.Text, " ") {
			t.Errorf("%+v: got %v, want a refusal of %s", c.cache, err, c.field)
		}
	}
}
