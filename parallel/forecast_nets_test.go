package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/race"
)

// searchFor returns the planner's search for a request on devices like those of the tests' engines, with memory bytes
// each; 0: no limit.
func searchFor(r *request.Request, memory int64) forecast.Search {
	w := workloadOf(r)
	d := w.Device
	d.ValueBytes, d.Memory, d.Reserved = r.Compute.Size(), memory, 0
	return forecast.Search{Workload: w, Exact: true, Cluster: hardware.Cluster{Device: d, Hosts: 1, PerHost: 4}}
}

// recordedOn adds a recorded net to the first entry of each branch of a request, with a hint for each picture.
func recordedOn(t *testing.T, r *request.Request, base, name string) {
	t.Helper()
	set, _, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	if name == "cn-fun-a" || strings.HasPrefix(name, "cn-sd35") {
		model, _, err := goldenweights.Set(base)
		if err == nil {
			set, err = control.WithBorrowed(models.Families(), set, model)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	config := `{"axes_dim": [8, 16, 16], "axes_dims_rope": [8, 16, 16], "num_heads": 4}`
	for _, b := range r.Branches {
		c := shown(r, openNet(t, name, set, []byte(config)), name, r.Latent.B)
		b.Entries[0].Control = append(b.Entries[0].Control, c)
	}
}

// TestNetsAreForecast checks that the memory forecast for a run with control nets equals, on every rank and to the
// byte, what a recorded run of the executor takes: nets of all kinds, with one hint or one for each picture, types,
// masks, reference latents of the model, and two nets on one entry.
func TestNetsAreForecast(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestHintsOfPartsAreForecast has fewer nets")
	}
	var plans []string
	for _, list := range [][]string{forecastPlans(), exactPlans(), stalePlans()} {
		plans = append(plans, list...)
	}
	slices.Sort(plans)
	plans = slices.DeleteFunc(slices.Compact(plans), func(text string) bool { return strings.Contains(text, "shard") })
	for k, c := range []struct{ base, net string }{
		{"flux-c", ""},
		{"sd3-b", ""},
		{"qwen-a", ""},
		{"kontext-a", "cn-union-a"},
		{"kontext-a", "cn-xlabs-a"},
		{"kontext-a", "cn-mistoline-a"},
		{"sd3-b", "cn-sd3-a"},
		{"sd3-b", "cn-sd35-canny-a"},
		{"hydit-a", "cn-hydit-a"},
		{"qwen-a", "cn-qwen-inpaint-a"},
		{"qwen-a", "cn-fun-a"},
	} {
		e, g := newRecordingEngine(t), openGolden(t, c.base)
		for _, steps := range []int{1, 4} {
			r := parityRequest(t, g, c.base, 2, 8, 6, steps)
			if c.net == "" {
				netted(t, r, c.base)
			} else {
				recordedOn(t, r, c.base, c.net)
			}
			if c.net == "cn-xlabs-a" { // which the net does not see
				prefixed(r, 5)
			}
			for i, text := range plans {
				for b, compute := range []engine.DType{engine.F32, engine.BF16} {
					if !soak && (i+k+3*(steps/4)+b)%18 > 0 && (text != "" || b > 0 && steps > 1) {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%d/%s/%s", c.base, c.net, steps, compute, text), func(t *testing.T) {
						compareNets(t, e, *r, planFor(g.model.Spec, text), compute)
					})
				}
			}
		}
	}
}

// TestHintsOfPartsAreForecast checks the case in which each rank has few rows of the picture, so that computing the
// whole hint sets a net's peak.
func TestHintsOfPartsAreForecast(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: planning has no goroutines of its own")
	}
	e := newRecordingEngine(t)
	for base, net := range map[string]string{"qwen-a": "cn-fun-a", "hydit-a": "cn-hydit-a", "sd3-b": "cn-sd3-a"} {
		for _, compute := range []engine.DType{engine.F32, engine.BF16} {
			r := parityRequest(t, openGolden(t, base), base, 2, 31, 32, 1)
			recordedOn(t, r, base, net)
			compareNets(t, e, *r, "ulysses=8", compute)
		}
	}
}

func compareNets(t *testing.T, e *Pool, r request.Request, text string, compute engine.DType) {
	t.Helper()
	if r.Model.Spec.Heads < 4 {
		text = strings.Replace(text, "tensor=4", "tensor=3", 1)
	}
	w, p := workloadOf(&r), planOf(t, text)
	if p.Check(w.Spec, w.Batch, len(w.Text), w.Tokens()) != nil {
		return // other small models accept it
	}
	r.Plan, r.Compute = text, compute
	e.dismiss()
	res, err := e.Sample(context.Background(), &r, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkMemory(t, w, p, compute.Size(), e.whole.team, res.Stats.PeakBytes)
	s := searchFor(&r, 0)
	s.Cluster.PerHost = p.Ranks()
	most := int64(0)
	all, err := s.Memory(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		most = max(most, m.Total()-m.Weights-m.Workspace)
	}
	if p.Speeds == (plan.Speeds{}) && most != res.Stats.PeakBytes {
		t.Errorf("%d bytes are forecast, %d were taken", most, res.Stats.PeakBytes)
	}
}

// TestHintsOfEachPictureAreForecast checks that one hint per picture takes as many more bytes as forecast.
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

// TestPlannerReckonsWithNets checks that nets add the time of their blocks, that their weights, divided only by tensor
// groups, count where memory is short, and that no plan shards them.
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
	predict := func(r *request.Request, text string) forecast.Candidate {
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
	// Net "one" is on two entries, twice on one of them, and "two" on one: four runs of three blocks beside three of
	// the model.
	blocks := len(r.Model.Spec.Blocks)
	with, none := predict(r, ""), predict(&plain, "")
	if got, want := with.Seconds/none.Seconds, 1+4*3/float64(3*blocks); !(got > 0.85*want && got < 1.15*want) {
		t.Errorf("nets make a run %.2f times as long, want about %.2f with %d blocks", got, want, blocks)
	}
	one := with.Memory.Total()
	if _, err := searchFor(&plain, one-1).Predict(planOf(t, "")); err != nil {
		t.Errorf("without nets: %v", err)
	}
	var refused *fault.Error
	if _, err := searchFor(r, one-1).Predict(planOf(t, "")); !errors.As(err, &refused) ||
		refused.Code != fault.OutOfMemory {
		t.Errorf("a byte less than the nets need: got %v, want out_of_memory", err)
	}
	for _, room := range []int64{one - 1, one * 3 / 4, one / 2} {
		s := searchFor(r, room)
		c, err := s.Choose()
		if err != nil {
			if !errors.As(err, &refused) || refused.Code != fault.OutOfMemory {
				t.Errorf("%d bytes: %v", room, err)
			}
			continue
		}
		for _, c := range append(c.Others, c.Best) {
			if err := r.Fits(c.Plan); err != nil {
				t.Errorf("%d bytes: %s is a candidate, but %v", room, c.Plan, err)
			}
		}
	}
}
