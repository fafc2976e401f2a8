package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/parallel/comm"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/leader"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// tinyRequest returns a request on the tiny model of a family: a batch, odd sides, and three entries of different text
// lengths in two branches.
func tinyRequest(t *testing.T, family string, b, y, x, steps int) *request.Request {
	t.Helper()
	d := describe(t, family)
	line, err := d.Sampling.Build()
	if err != nil {
		t.Fatal(err)
	}
	sigmas, err := sampling.KSamplerSigmas(line, "euler", "simple", steps, 1)
	if err != nil {
		t.Fatal(err)
	}
	spec := d.Spec
	entry := func(tag string, tokens int) request.Entry {
		e := request.Entry{Strength: 1}
		if spec.Context2Dim > 0 {
			e.Context2 = dit.Array{Rows: 256, Cols: spec.Context2Dim, Data: golden.Input(tag+"2", 256*spec.Context2Dim)}
			tokens = 77
		}
		e.Context = dit.Array{Rows: tokens, Cols: spec.ContextDim, Data: golden.Input(tag, tokens*spec.ContextDim)}
		if spec.PooledDim > 0 {
			e.Pooled = golden.Input(tag+"pooled", spec.PooledDim)
		}
		if spec.Concat > 0 {
			e.Concat = dit.Reference{Y: y, X: x, Data: golden.Input(tag+"concat", spec.Concat*y*x)}
		}
		return e
	}
	refers := entry("a", 13)
	if spec.References {
		r := dit.Reference{Y: 2, X: 3, Data: golden.Input("reference", spec.Channels*6)}
		refers.References = []dit.Reference{r, r}
		if spec.Preface { // a forecast does not know where references stand
			refers.Slots = []int{3}
		}
	}
	l := request.NewLatent(b, spec.Channels, y, x)
	if spec.Frames && y%3 == 0 {
		l.T = 3
	}
	l.Data = golden.Input("latent", l.Len())
	return biased(&request.Request{
		Model: request.Model{
			Key: "tiny-" + family, Spec: &spec,
			Weights: packedOnce(family, d.Load),
		},
		Sampling: line, Sampler: "euler", Sigmas: sigmas, Latent: l, Guider: request.Guider{Kind: request.GuideCFG, CFG: 3},
		Branches: []request.Branch{
			{Name: "positive", Entries: []request.Entry{refers, entry("c", 5)}},
			{Name: "negative", Entries: []request.Entry{entry("b", 7)}},
		},
	})
}

// biased adds attention biases to the entries of models that accept them, except entries with reference latents, and
// makes the last frames of three guide the video in models that know that. Models that look at pictures get the states
// of one. The first entry has a reference sound where sound is a stream of its own.
func biased(r *request.Request) *request.Request {
	for _, b := range r.Branches {
		for i := range b.Entries {
			if r.Model.Spec.Keyframes && r.Latent.T == 3 {
				mask := slices.Repeat([]float32{1}, r.Latent.Y/3*r.Latent.X)
				mask[0], mask[1] = 0, 1.7
				b.Entries[i].Keyframes = []dit.Keyframes{
					{Spans: [][2]float32{{9, 17}}, Weight: 0.6, Mask: mask}, {Spans: [][2]float32{{0, 1}}, Weight: 1},
				}
			}
			if n := r.Model.Spec.VisionDim; n > 0 {
				b.Entries[i].Vision = dit.Array{Rows: 8, Cols: n, Data: golden.Input("vision", 8*n)}
			}
			if s := r.Model.Spec.Sound; s.Width > 0 && r.Latent.Sound.Len() > 0 && b.Name == "positive" && i == 0 {
				cols := s.Channels * s.Patch
				b.Entries[i].SoundReference = dit.Array{Rows: 4, Cols: cols, Data: golden.Input("voice", 4*cols)}
			}
			if e := &b.Entries[i]; r.Model.Spec.Biases && e.References == nil {
				e.Biases = []dit.Bias{
					{Rows: dit.Range{Start: 1, End: 3}, Value: 0.7},
					{Rows: dit.Range{Start: 3, End: e.Context.Rows - 1}, Value: -1.4},
				}
			}
		}
	}
	return r
}

// workloadOf returns the planner's view of a request, with the device by which engines balance stages by default.
func workloadOf(r *request.Request) forecast.Workload {
	w := r.Workload()
	if m, err := hardware.NewMachine("cpu"); err == nil {
		w.Device = m.Device
	}
	return w
}

// forecastPlans returns plans of every axis and products of them. The caller skips those that a model refuses.
func forecastPlans() []string {
	return []string{
		"", "ulysses=2", "ulysses=3", "ulysses=7", "ring=2", "ring=3", "ring=2,ulysses=3", "tensor=2", "tensor=3",
		"gather=2", "gather=3", "gather=2,ulysses=3", "tensor=2,gather=2,overlap=off", "pipe=2,gather=2,patches=3",
		"cfg=2", "cfg=3", "data=2",
		"cfg=2,ulysses=2,data=2", "tensor=2,ulysses=2,ring=2", "pipe=2", "pipe=3,patches=3,warmup=2",
		"pipe=2,patches=5,warmup=99", "pipe=4,patches=7,warmup=0",
		"pipe=2,ulysses=3,patches=3", "pipe=2,ring=2,ulysses=2,patches=2", "pipe=2,ring=3,patches=4",
		"cfg=2,pipe=2,tensor=2,patches=2",
		"pipe=2,patches=3,sync=spread", "pipe=3,patches=2,warmup=2,sync=spread",
		"pipe=2,ring=2,ulysses=2,patches=2,sync=spread",
		"cfg=2,pipe=2,ulysses=3,patches=5,warmup=99,sync=spread", "pipe=2,tensor=2,patches=2,sync=spread",
		"tensor=2,form=scatter", "tensor=4,form=scatter", "ring=2,ulysses=2,tensor=2,form=scatter",
		"cfg=2,data=2,tensor=3,form=scatter",
		"pipe=2,ulysses=2,tensor=3,form=scatter,patches=5", "pipe=2,patches=3,shard=on",
		"pipe=4,ulysses=2,patches=2,shard=on",
		"cfg=2,pipe=3,tensor=2,patches=2,shard=on", "pipe=2,patches=3,kv=fp8", "pipe=3,ring=2,ulysses=3,patches=2,kv=fp8",
		"ulysses=4,deterministic=on", "ring=2,ulysses=3,deterministic=on",
		"data=2,ring=3,deterministic=on",
		"pipe=2,ring=2,ulysses=2,patches=3,sync=spread,deterministic=on", "pipe=3,deterministic=on",
		"pipe=2,ulysses=2,patches=4,sync=spread,kv=fp8", "cfg=2,pipe=2,tensor=2,patches=2,shard=on,kv=fp8",
	}
}

// taken adapts a test plan to the request's model: tensor=4 becomes tensor=3 if it has only three heads.
func taken(r *request.Request, text string) string {
	if r.Model.Spec.Heads < 4 {
		return strings.Replace(text, "tensor=4", "tensor=3", 1)
	}
	return text
}

// TestForecastEqualsExecutor runs a plan of every kind on one family and checks that bytes and calls of each rank and
// axis, and the memory of each rank, equal the formulas exactly. It shows that recorded runs (recorded_test.go) count
// as real ones do.
func TestForecastEqualsExecutor(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestPatchesAreForecast, TestPrefixesAreForecast and TestStagesWithTheirWeightsAreForecast have some")
	}
	for n, f := range families(t) {
		e := newEngine(t)
		r := tinyRequest(t, f.name, 2, f.y, f.x, 3)
		w := workloadOf(r)
		for i, text := range everyNth(kinds(forecastPlans()), n, 12) { // recorded_test.go has them all
			text = taken(r, text)
			p := planOf(t, text)
			if p.Check(w.Spec, w.Batch, len(w.Text), w.Tokens()) != nil {
				t.Errorf("%s %s is refused; every tiny model takes it", f.name, text)
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", f.name, p), func(t *testing.T) {
				r, value := *r, 4
				r.Plan = text
				if (i+n)%2 == 1 { // half of them in bf16
					r.Compute, value = engine.BF16, 2
				}
				e.dismiss() // ranks keep the memory of earlier requests
				res, err := e.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				checkTraffic(t, w, p, value, res.Stats.Traffic)
				checkMemory(t, w, p, value, e.whole.team, res.Stats.PeakBytes)
			})
		}
	}
}

// checkMemory compares the memory of every rank's lanes with the formulas, and the reported peak with the rank that
// needs most according to the planner.
func checkMemory(t *testing.T, w forecast.Workload, p plan.Plan, value int, ranks *leader.Team, peak int64) {
	t.Helper()
	o, took := forecast.NewPartition(w, p), make([]int64, p.Ranks())
	for i, l := range ranks.Members {
		at := ranks.Mesh.At(i)
		k := at.Pipe
		at.Pipe = o.Stage(k)
		want, err := o.LaneMemory(at, k, value)
		if err != nil {
			t.Fatal(err)
		}
		session, acts, exchange := rankOf(l).Memory()
		got := forecast.Memory{
			KV:      want.KV, // compared elsewhere
			Session: int64(session), Activations: int64(acts), Exchange: int64(exchange),
		}
		if got != want {
			t.Errorf("lane %d of rank %+v took %+v, the planner says %+v, activations of %d bytes", k, at, got, want, value)
		}
		device, _ := ranks.Device(i)
		took[device] += got.Session + got.Activations + got.Exchange
	}
	all, err := forecast.MemoryByRank(w, p, 4, value)
	if err != nil {
		t.Fatal(err)
	}
	for r, m := range all {
		if want := m.Total() - m.Weights; took[r] != want {
			t.Errorf("rank %d took %d bytes, the planner says %d", r, took[r], want)
		}
	}
	if most := slices.Max(took); peak != most {
		t.Errorf("the peak is reported as %d bytes, the rank that needs most took %d", peak, most)
	}
}

// checkTraffic compares counters with formulas.
func checkTraffic(t *testing.T, w forecast.Workload, p plan.Plan, value int, counted [][]comm.Traffic) {
	t.Helper()
	if len(counted) != p.Ranks() {
		t.Fatalf("counters of %d ranks, want %d", len(counted), p.Ranks())
	}
	for r, want := range forecast.TrafficByRank(w, p, 4, value) {
		for a := range plan.AxisCount {
			got := counted[r][a]
			// shards are cut where packed matrices allow: TestPartsAreWithinTheirBounds compares them
			parts := p.Parts() > 1 && (a == plan.AxisShard || a == plan.AxisStream)
			if got.Bytes != want[a].Bytes && !parts {
				t.Errorf("rank %d %s: executor sent %d bytes, formula %d", r, a, got.Bytes, want[a].Bytes)
			}
			if got.Calls != want[a].Calls {
				t.Errorf("rank %d %s: executor made %d calls, formula %d", r, a, got.Calls, want[a].Calls)
			}
		}
	}
}
