package parallel

import (
	"context"
	"errors"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/failure"
	"patchbay/parallel/forecast"
)

// searchFor is the planner's question for a request on devices like those of the tests' engines, which hold so many
// bytes, 0: any number.
func searchFor(r *Request, memory int64) forecast.Search {
	w := workloadOf(r)
	d := w.Device
	d.ValueBytes, d.Memory, d.Reserved = r.Compute.Size(), memory, 0
	return forecast.Search{Workload: w, Exact: true, Cluster: forecast.Cluster{Device: d, Hosts: 1, PerHost: 4}}
}

// TestNetsAreForecast compares the memory that the planner expects of a run with control nets with what a recorded run
// of the executor takes: never less, and little more, as sessions of nets are forecast like those of whole models.
func TestNetsAreForecast(t *testing.T) {
	for _, base := range []string{"flux-c", "sd3-b", "qwen-a"} {
		e := newRecordingEngine(t)
		r := parityRequest(t, openGolden(t, base), base, 2, 8, 6, 2)
		netted(t, r, base)
		for _, compute := range []engine.DType{engine.F32, engine.BF16} {
			for _, text := range []string{"", "ulysses=2", "ring=2", "tensor=2", "cfg=2", "data=2", "pipe=2,patches=2"} {
				r.Plan, r.Compute = text, compute
				e.dismiss()
				res, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatalf("%s %s: %v", base, text, err)
				}
				c, err := searchFor(r, 0).Predict(planOf(t, text))
				if err != nil {
					t.Fatal(err)
				}
				got := c.Best.Memory.Total() - c.Best.Memory.Weights
				if share := float64(got) / float64(res.Stats.PeakBytes); !(share >= 1 && share <= 1.15) {
					t.Errorf("%s %s %q: %d bytes are forecast, %d were taken", base, compute, text, got, res.Stats.PeakBytes)
				}
			}
		}
	}
}

// TestHintsOfEachPictureAreForecast: a hint for each picture takes as many bytes more than one for all as are forecast.
func TestHintsOfEachPictureAreForecast(t *testing.T) {
	e := newRecordingEngine(t)
	take := func(pictures int) (forecast, taken int64) {
		r := parityRequest(t, openGolden(t, "sd3-b"), "sd3-b", 4, 8, 6, 2)
		netted(t, r, "sd3-b")
		hint := &r.Branches[0].Entries[0].Control[1].Hint
		hint.B, hint.Data = pictures, hint.Data[:len(hint.Data)/4*pictures]
		e.dismiss()
		res, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := searchFor(r, 0).Predict(planOf(t, ""))
		if err != nil {
			t.Fatal(err)
		}
		return c.Best.Memory.Total(), res.Stats.PeakBytes
	}
	all, allTaken := take(4)
	one, oneTaken := take(1)
	if all-one != allTaken-oneTaken || all == one {
		t.Errorf("%d bytes more are forecast, %d were taken", all-one, allTaken-oneTaken)
	}
}

// TestPlannerReckonsWithNets: nets add the time of their blocks, their weights, cut by tensor groups alone, count where
// memory is short, and no plan keeps them in parts.
func TestPlannerReckonsWithNets(t *testing.T) {
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 2, 8, 6, 2)
	plain := *r
	netted(t, r, "flux-c")
	const bytes = 1 << 20 // of each net
	for _, b := range r.Branches {
		for i := range b.Entries[0].Control {
			b.Entries[0].Control[i].Net.WeightBytes = bytes
		}
	}
	plain.Branches = nil
	for _, b := range r.Branches {
		without := b
		without.Entries = slices.Clone(b.Entries)
		without.Entries[0].Control = nil
		plain.Branches = append(plain.Branches, without)
	}
	predict := func(r *Request, text string) forecast.Candidate {
		c, err := searchFor(r, 0).Predict(planOf(t, text))
		if err != nil {
			t.Fatal(err)
		}
		return c.Best
	}
	for text, weights := range map[string]int64{"": 2 * bytes, "tensor=2": bytes, "pipe=2": 2 * bytes} {
		with, none := predict(r, text), predict(&plain, text)
		if got := with.Memory.Weights - none.Memory.Weights; got != weights {
			t.Errorf("%q: nets add %d bytes of weights, want %d", text, got, weights)
		}
	}
	// Net "one" is on two entries, on one of them twice, "two" on one: four runs of three blocks beside three of the
	// model.
	blocks := len(r.Model.Spec.Blocks)
	with, none := predict(r, ""), predict(&plain, "")
	if got, want := with.Seconds/none.Seconds, 1+4*3/float64(3*blocks); !(got > 0.85*want && got < 1.15*want) {
		t.Errorf("nets make a run %.2f times as long, want about %.2f with %d blocks", got, want, blocks)
	}
	one := with.Memory.Total()
	if _, err := searchFor(&plain, one-1).Predict(planOf(t, "")); err != nil {
		t.Errorf("without nets: %v", err)
	}
	var refused *failure.Error
	if _, err := searchFor(r, one-1).Predict(planOf(t, "")); !errors.As(err, &refused) ||
		refused.Code != failure.OutOfMemory {
		t.Errorf("a byte less than the nets need: got %v, want out_of_memory", err)
	}
	for _, room := range []int64{one - 1, one * 3 / 4, one / 2} {
		s := searchFor(r, room)
		c, err := s.Choose()
		if err != nil {
			if !errors.As(err, &refused) || refused.Code != failure.OutOfMemory {
				t.Errorf("%d bytes: %v", room, err)
			}
			continue
		}
		for _, c := range append(c.Others, c.Best) {
			if err := r.fits(c.Plan); err != nil {
				t.Errorf("%d bytes: %s is a candidate, but %v", room, c.Plan, err)
			}
		}
	}
}
