package parallel

import (
	"context"
	"math"
	"testing"

	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/tests/race"
)

// psnr returns the PSNR of two latents in dB, with the peak of the reference, or -Inf if their lengths differ.
func psnr(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(-1)
	}
	var err, top float64
	for i := range want {
		d := float64(got[i] - want[i])
		err += d * d
		top = math.Max(top, math.Abs(float64(want[i])))
	}
	return decibels(top*top*float64(len(want)), err)
}

// TestStalePipelineStaysClose checks that stale K/V make the result drift by a bounded amount, and that a second run
// gives the same bits.
func TestStalePipelineStaysClose(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	e := newEngine(t)
	g := openGolden(t, "flux-c")
	r := parityRequest(t, g, "flux-c", 1, 12, 12, 8)
	want, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, plan := range []string{
		"pipe=2,warmup=1", "pipe=2,patches=4,warmup=2", "pipe=4,patches=4,warmup=1",
		"cfg=2,pipe=2,ulysses=2,patches=3,warmup=1",
	} {
		t.Run(plan, func(t *testing.T) {
			r := *r
			r.Plan = plan
			got, err := e.Sample(context.Background(), &r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel == 0 {
				t.Error("equal to one rank: stale K/V were not used")
			}
			// Untrained networks amplify staleness more than trained ones do. A wrong index gives less than 10 dB.
			if db := psnr(got.Latent.Data, want.Latent.Data); !(db >= 20) {
				t.Errorf("PSNR to one rank %.1f dB, bound 20 dB", db)
			}
			again, err := e.Sample(context.Background(), &r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(again.Latent.Data, got.Latent.Data); rel != 0 {
				t.Errorf("second run differs by %.3g", rel)
			}
		})
	}
}

// TestFoldedStagesStayClose checks the drift of a skip-connected model on stale folded stages, odd numbers included.
func TestFoldedStagesStayClose(t *testing.T) {
	if testing.Short() {
		t.Skip("long: many steps; TestStalePipelineStaysClose measures straight stages")
	}
	e := newEngine(t)
	g := openGolden(t, "hydit-a")
	r := parityRequest(t, g, "hydit-a", 1, 12, 12, 8)
	want, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, plan := range []string{
		"pipe=2,patches=4,warmup=2", "pipe=3,patches=5,warmup=2",
		"pipe=3,ulysses=2,patches=5,warmup=2",
	} {
		r := *r
		r.Plan = plan
		got, err := e.Sample(context.Background(), &r, nil)
		if err != nil {
			t.Fatalf("%s: %v", plan, err)
		}
		db := psnr(got.Latent.Data, want.Latent.Data)
		t.Logf("%s: %.1f dB", plan, db)
		if !(db >= 20) || math.IsInf(db, 1) {
			t.Errorf("%s: PSNR to one rank %.1f dB, want a finite value of at least 20", plan, db)
		}
	}
}

// TestSpreadFoldedStagesReadTheSame checks that a warm-up on all folded stages at once leaves the stores as a warm-up
// stage by stage does: after stale evaluations the two differ only by rounding, with entries that begin late, ulysses
// and ring inside, and any order of the ranks.
func TestSpreadFoldedStagesReadTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("long: many runs of a folded pipeline; TestExactPlansEqualOneRank has one")
	}
	e := newEngine(t)
	g := openGolden(t, "hydit-a")
	r := parityRequest(t, g, "hydit-a", 1, 8, 9, 5)
	late := &r.Branches[0].Entries[1]
	late.Ranged, late.SigmaStart = true, r.Sigmas[2]
	ordered, err := NewPool(Config{NewOps: testOps, Order: 7, Recode: roundTrip})
	if err != nil {
		t.Fatal(err)
	}
	defer ordered.Close()
	for _, plan := range []string{
		"pipe=2,patches=4,warmup=2", "pipe=3,patches=5,warmup=1",
		"pipe=3,ulysses=2,patches=5,warmup=1", "pipe=2,ring=2,tensor=2,patches=3,warmup=2",
	} {
		r := *r
		r.Plan = plan
		want, err := e.Sample(context.Background(), &r, nil)
		if err != nil {
			t.Fatalf("%s: %v", plan, err)
		}
		r.Plan += ",sync=spread"
		for _, ranks := range []*Pool{e, ordered} {
			got, err := ranks.Sample(context.Background(), &r, nil)
			if err != nil {
				t.Fatalf("%s: %v", r.Plan, err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-5 {
				t.Errorf("%s: relative difference to sync=stages %.3g, bound 1e-5", r.Plan, rel)
			}
		}
	}
}

// TestTextIsComputedOncePerEvaluation checks that every stage computes each text and image token exactly once per
// evaluation, whatever the number of patches.
func TestTextIsComputedOncePerEvaluation(t *testing.T) {
	e := newEngine(t)
	g := openGolden(t, "flux-c")
	r := parityRequest(t, g, "flux-c", 1, 12, 12, 5)
	r.Plan = "pipe=2,patches=4,warmup=1"
	res, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := rank.TokenCount{
		Text:  int64(res.Stats.Evaluations) * (13 + 5 + 7),
		Image: int64(res.Stats.Evaluations) * 3 * 36, MicroSteps: 1 + int64(res.Stats.Evaluations-1)*4,
	}
	for rank, got := range res.Stats.Tokens {
		if got != want {
			t.Errorf("rank %d computed %+v tokens, want %+v", rank, got, want)
		}
	}
}

// TestEntryThatStartsLate checks that an entry that becomes active during a run stays close to one rank, since its
// first evaluation is synchronous.
func TestEntryThatStartsLate(t *testing.T) {
	e := newEngine(t)
	g := openGolden(t, "flux-c")
	r := parityRequest(t, g, "flux-c", 1, 10, 12, 8)
	late := &r.Branches[0].Entries[1]
	late.Ranged, late.SigmaStart, late.SigmaEnd = true, float32(g.sampling.PercentToSigma(0.4)), 0
	want, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, plan := range []string{"pipe=3,patches=3,warmup=99", "pipe=3,patches=3,warmup=1"} {
		r := *r
		r.Plan = plan
		got, err := e.Sample(context.Background(), &r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if db := psnr(got.Latent.Data, want.Latent.Data); !(db >= 20) {
			t.Errorf("%s: PSNR to one rank %.1f dB, bound 20 dB", plan, db)
		}
	}
}

// TestReceivesArePostedAhead checks that stages post memory for patches on their way only with overlap, and that
// overlap changes neither a bit of the result nor the traffic. The order of ranks is fixed, so counts are
// reproducible.
func TestReceivesArePostedAhead(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: ranks run one at a time")
	}
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 12, 12, 8)
	results := map[bool]*request.Result{}
	for overlap, plan := range map[bool]string{
		true:  "pipe=3,patches=6,warmup=1",
		false: "pipe=3,patches=6,warmup=1,overlap=off",
	} {
		e, err := NewPool(Config{NewOps: testOps, Order: 7})
		if err != nil {
			t.Fatal(err)
		}
		r := *r
		r.Plan = plan
		if results[overlap], err = e.Sample(context.Background(), &r, nil); err != nil {
			t.Fatal(err)
		}
		e.Close()
	}
	on, off := results[true], results[false]
	if rel := relative(on.Latent.Data, off.Latent.Data); rel != 0 {
		t.Errorf("overlap changes the result by %.3g", rel)
	}
	const messages = 7 * 6 * 3 // stale evaluations, patches, entries
	for rank := range 3 {
		a, b := on.Stats.Traffic[rank][plan.AxisPipe], off.Stats.Traffic[rank][plan.AxisPipe]
		if a.Bytes != b.Bytes || a.Calls != b.Calls {
			t.Errorf("rank %d: overlap changes traffic: %+v, %+v", rank, a, b)
		}
		if b.Posted != 0 {
			t.Errorf("rank %d: %d posts with overlap=off", rank, b.Posted)
		}
		if want := int64(messages / 2); rank > 0 && a.Posted < want {
			t.Errorf("rank %d: %d of %d messages had memory posted, want at least %d", rank, a.Posted, messages, want)
		}
	}
}
