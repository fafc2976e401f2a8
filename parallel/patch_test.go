package parallel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/dit"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// patchRun is a recorded evaluation of a network with model patches (tests/reference/make_patches.py).
type patchRun struct {
	X         []int     `json:"x"`
	Context   []int     `json:"context"`
	Timesteps []float32 `json:"timesteps"`
	Refs      [][]int   `json:"refs"`
	// file, strength, size of the mask or null, and for some whether a picture to inpaint was given
	Patches [][]json.RawMessage `json:"patches"`
}

// patchNamed returns a recorded patch.
func patchNamed(t *testing.T, name string) (request.Model, *control.Net) {
	t.Helper()
	set, _, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	n, err := models.OpenPatch(set)
	if err != nil {
		t.Fatal(err)
	}
	key := "patch " + name
	return request.Model{Key: key, Spec: &n.Spec, Weights: packedOnce(key, n.Load), WeightBytes: 4 * n.Spec.Params}, n
}

// patchOn returns a patch with the named hint for a latent of y x x. The mask is 0 where the picture is inpainted. The
// latent to inpaint has the hint's name with "fill" for "hint".
func patchOn(t *testing.T, file, hint string, strength float32, mask []float32, y, x int) request.Control {
	t.Helper()
	m, n := patchNamed(t, file)
	y, x = n.Spec.HintSize(y, x)
	c := request.Control{
		Net: m, Patch: !n.Spec.Follows, Strength: strength, SigmaStart: 1e9, Hint: request.Latent{
			B: 1, C: n.Hint, Y: y,
			X: x,
		},
	}
	latentOf := func(name string) []float32 {
		v := golden.Input(name, n.Format.Channels*y*x)
		n.Format.ToModel(v, y*x)
		return v
	}
	c.Hint.Data = latentOf(hint)
	if n.Masked() {
		if mask == nil && n.Fills() {
			mask = make([]float32, y*x)
		} else if mask == nil {
			mask = slices.Repeat([]float32{1}, y*x)
		}
		c.Hint.Data = append(c.Hint.Data, mask...)
	}
	if n.Fills() {
		c.Hint.Data = append(c.Hint.Data, latentOf(strings.Replace(hint, "hint", "fill", 1))...)
	}
	return c
}

// request returns the evaluation of item i, and what ComfyUI's network makes of it.
func (run *patchRun) request(t *testing.T, name string, g goldenModel, all []float32, i int) (*request.Request,
	[]float32,
) {
	t.Helper()
	n, c, y, x := run.X[0], run.X[1], run.X[len(run.X)-2], run.X[len(run.X)-1]
	ofItem := func(v []float32) []float32 { return v[i*len(v)/n : (i+1)*len(v)/n] }
	input := func(what string, size int) []float32 { return ofItem(golden.Input(name+"/"+what, n*size)) }
	e := request.Entry{Strength: 1}
	e.Context = dit.Array{
		Rows: run.Context[1], Cols: run.Context[2], Data: input("context", run.Context[1]*run.Context[2]),
	}
	for k, r := range run.Refs {
		e.References = append(e.References, dit.Reference{Y: r[0], X: r[1], Data: input(fmt.Sprint("ref", k), c*r[0]*r[1])})
	}
	for k, p := range run.Patches {
		var file string
		var strength float32
		var mask []int
		for k, v := range []any{&file, &strength, &mask} { // every picture to inpaint has the given latent
			if err := json.Unmarshal(p[k], v); err != nil {
				t.Fatal(err)
			}
		}
		var keep []float32
		if mask != nil {
			for _, v := range golden.Fill(fmt.Sprintf("input:%s/mask%d", name, k), mask[0]*mask[1], 1, 0.5) {
				keep = append(keep, 1-v)
			}
		}
		e.Control = append(e.Control, patchOn(t, file, fmt.Sprintf("%s/hint%d", name, k), strength, keep, y, x))
	}
	in, sigma := input("x", c*y*x), run.Timesteps[i]
	noise, want := request.NewLatent(1, c, y, x), slices.Clone(in)
	for k, v := range ofItem(all) {
		noise.Data[k], want[k] = in[k]/sigma, in[k]-sigma*v
	}
	return &request.Request{
		Model: g.model, Sampling: g.sampling, Sampler: "euler", Sigmas: []float32{sigma, 0}, Latent: request.NewLatent(1,
			c, y, x),
		Noise: noise, Guider: request.Guider{Kind: request.GuideBasic}, Branches: []request.Branch{{
			Name:    "positive",
			Entries: []request.Entry{e},
		}},
	}, want
}

// TestPatchesMatchComfyUI compares networks with model patches with those of ComfyUI 0.33.0.
func TestPatchesMatchComfyUI(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestExactPlansRunPatchesAsOneRank runs the same patches")
	}
	e, bases := newEngine(t), map[string]goldenModel{}
	for _, name := range []string{"qwen-a", "zimage-a"} {
		bases[name] = openGolden(t, name)
	}
	var runs map[string]patchRun
	if err := golden.JSON("modern33/patches.json", &runs); err != nil {
		t.Fatal(err)
	}
	f, err := golden.Open("modern33/patches.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	compared := 0
	for name, run := range runs {
		if run.X == nil { // recorded through the nodes
			continue
		}
		entry, ok := f.Entry(name)
		if !ok {
			t.Fatalf("nothing is recorded as %s", name)
		}
		all, err := entry.F32()
		if err != nil {
			t.Fatal(err)
		}
		for i := range run.X[0] {
			base, _, _ := strings.Cut(name, "/")
			r, want := run.request(t, name, bases[base], all, i)
			plans := []string{"", "ulysses=3", "tensor=2,form=scatter"}
			if !follows(r) {
				plans = append(plans, "pipe=2,patches=2,warmup=1")
			}
			for _, r.Plan = range plans {
				got, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want); !(rel <= 2e-5) {
					t.Errorf("%s item %d %q: relative difference to ComfyUI %.3g, bound 2e-5", name, i, r.Plan, rel)
				}
				compared++
			}
		}
	}
	if compared < 41 {
		t.Errorf("%d evaluations compared, want at least 41", compared)
	}
}

// follows reports whether a patch reads the model's activations block by block.
func follows(r *request.Request) bool {
	return slices.ContainsFunc(r.Branches[0].Entries[0].Control,
		func(c request.Control) bool { return c.Net.Spec.Follows })
}

// patchedRequest returns a run of two steps of a batch, with two patches in sequence on every entry.
func patchedRequest(t *testing.T, base string) *request.Request {
	t.Helper()
	r, files := parityRequest(t, openGolden(t, base), base, 2, 7, 9, 2), []string{"diffsynth-a", "diffsynth-inpaint-a"}
	if base == "zimage-a" {
		files = []string{"fun-a", "fun-union-a"}
	}
	for b := range r.Branches {
		for i := range r.Branches[b].Entries {
			r.Branches[b].Entries[i].Control = []request.Control{
				patchOn(t, files[0], "hint0", 0.8, nil, 7, 9), patchOn(t, files[1], "hint1", -0.3, nil, 7, 9),
			}
		}
	}
	return r
}

// TestExactPlansRunPatchesAsOneRank checks exact plans with patches against one rank, however rows, heads, entries and
// blocks are divided.
func TestExactPlansRunPatchesAsOneRank(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for k, e := range []*Pool{newEngine(t), newDeferredEngine(t, 7)} {
		for _, base := range []string{"qwen-a", "zimage-a"} {
			r := patchedRequest(t, base)
			want, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			plans := append(somePlans(kinds(exactPlans()), k, 10), "pipe=3,patches=4,warmup=99,sync=spread")
			if follows(r) {
				straight := slices.DeleteFunc(kinds(exactPlans()), func(plan string) bool { return strings.Contains(plan, "pipe") })
				plans = append(somePlans(straight, k, 4), "ulysses=2,deterministic=on", "ring=3,deterministic=on")
			}
			for _, plan := range plans {
				r.Plan = planFor(r.Model.Spec, plan)
				got, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatalf("%s: %v", plan, err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= 1e-5) {
					t.Errorf("%s %s: relative difference to one rank %.3g, bound 1e-5", base, plan, rel)
				}
			}
		}
	}
}

// TestPatchesAreForecast checks the forecast of patches: memory against a recorded run, weights against what ranks
// hold, and time against their share of the products.
func TestPatchesAreForecast(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: planning has no goroutines of its own")
	}
	for _, base := range []string{"qwen-a", "zimage-a"} {
		e, r := newRecordingEngine(t), patchedRequest(t, base)
		plain := *r
		plain.Branches = slices.Clone(r.Branches)
		for b := range plain.Branches {
			plain.Branches[b].Entries = slices.Clone(r.Branches[b].Entries)
			for i := range plain.Branches[b].Entries {
				plain.Branches[b].Entries[i].Control = nil
			}
		}
		plans := []string{"", "ulysses=2", "ring=2", "tensor=2", "cfg=2", "data=2"}
		if follows(r) {
			plans = append(plans, "ulysses=3", "tensor=2,form=scatter")
		} else {
			plans = append(plans, "pipe=2,patches=2")
		}
		for _, compute := range []engine.DType{engine.F32, engine.BF16} {
			for _, text := range plans {
				r.Plan, r.Compute, plain.Plan, plain.Compute = text, compute, text, compute
				forecastOfPatches(t, e, r, &plain)
			}
		}
	}
}

// forecastOfPatches compares the forecast of a request with what it took, next to the same request without patches.
func forecastOfPatches(t *testing.T, e *Pool, r, plain *request.Request) {
	t.Helper()
	e.dismiss()
	res, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatalf("%s: %v", r.Plan, err)
	}
	e.dismiss()
	bare, err := e.Sample(context.Background(), plain, nil)
	if err != nil {
		t.Fatalf("%s: %v", r.Plan, err)
	}
	with, err := searchFor(r, 0).Predict(planOf(t, r.Plan))
	if err != nil {
		t.Fatal(err)
	}
	none, err := searchFor(plain, 0).Predict(planOf(t, r.Plan))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%s %s %q", r.Model.Spec.Family, r.Compute, r.Plan)
	if got := with.Best.Memory.Total() - with.Best.Memory.Weights; got != res.Stats.PeakBytes {
		t.Errorf("%s: %d bytes are forecast, %d were taken", name, got, res.Stats.PeakBytes)
	}
	got, want := with.Best.Memory.Weights-none.Best.Memory.Weights, weightsOfPatches(t, r)
	if got != want || res.Stats.PeakBytes <= bare.Stats.PeakBytes {
		t.Errorf("%s: patches add %d bytes of weights, want %d", name, got, want)
	}
	if r.Plan != "" && r.Plan != "data=2" { // these devices have no links
		return
	}
	low, high := 1.02, 2.
	if follows(r) { // 8 and 17 blocks of 20 tokens beside 2 of 32 and 3 of 64
		low, high = 2.9, 3.2
	}
	if ratio := with.Best.Seconds / none.Best.Seconds; !(ratio > low && ratio < high) {
		t.Errorf("%s: patches make a run %.3g times as long, want %.3g to %.3g", name, ratio, low, high)
	}
}

// weightsOfPatches returns the bytes of an entry's patches on the rank that holds most: in a tensor group of two only
// half of the matrices of MLPs, and the larger half of the heads.
func weightsOfPatches(t *testing.T, r *request.Request) (n int64) {
	t.Helper()
	for _, c := range r.Branches[0].Entries[0].Control {
		set, _, err := goldenweights.Set(strings.TrimPrefix(c.Net.Key, "patch "))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range set.Names() {
			w, _ := set.Get(name)
			n += int64(4 * w.Len())
			switch heads := c.Net.Spec.Groups(); {
			case !strings.HasPrefix(r.Plan, "tensor"):
			case strings.Contains(name, "feed_forward."):
				n -= int64(2 * w.Len())
			case strings.Contains(name, "attention.qkv"), strings.Contains(name, "attention.out"):
				n -= int64(4 * w.Len() / heads * (heads / 2))
			}
		}
	}
	return n
}

// TestPlansOfFollowersHaveNoStages checks that the planner proposes only plans that run, whatever the memory.
func TestPlansOfFollowersHaveNoStages(t *testing.T) {
	r := patchedRequest(t, "zimage-a")
	for _, room := range []int64{0, 120 << 20, 90 << 20} {
		c, err := searchFor(r, room).Choose()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range append(c.Others, c.Best) {
			if err := r.Fits(c.Plan); err != nil {
				t.Errorf("%d bytes: %s is a candidate, but %v", room, c.Plan, err)
			}
		}
	}
}

// TestBadPatchesAreRefused checks that the error says what is wrong.
func TestBadPatchesAreRefused(t *testing.T) {
	e, other := newEngine(t), netOf(t, "sd3-b", "other", 16).Net
	for want, spoil := range map[string]func(*request.Request, *request.Entry){
		"has a model patch for 2 blocks, the qwenimage model has 3": func(_ *request.Request, e *request.Entry) {
			short := *e.Control[0].Net.Spec
			short.Blocks = short.Blocks[:2]
			e.Control[0].Net.Spec = &short
		},
		"not for a qwenimage model": func(_ *request.Request, e *request.Entry) { e.Control[0].Net = other },
		"want [1, channels, 7, 9]":  func(_ *request.Request, e *request.Entry) { e.Control[0].Hint.X-- },
		"with a hint of [2, 16, 7, 9], want": func(_ *request.Request, e *request.Entry) {
			e.Control[0].Hint = request.NewLatent(2, 16, 7, 9)
		},
		"the hint is [20, 68], want [20, 64]": func(_ *request.Request,
			e *request.Entry,
		) {
			e.Control[0].Hint = e.Control[1].Hint
		},
		"a control net, or its model a patch, and": func(_ *request.Request,
			e *request.Entry,
		) {
			e.Area = request.Area{H: 4, W: 4}
		},
		"a model patch, whose weights are not kept in": func(r *request.Request,
			_ *request.Entry,
		) {
			r.Plan = "ulysses=2,shard=on"
		},
		"plan.pipe: is 2, but an entry of positive has a model patch that reads": func(r *request.Request, _ *request.Entry) {
			*r = *patchedRequest(t, "zimage-a")
			r.Plan = "pipe=2"
		},
		"want [1, channels, 8, 10]": func(r *request.Request, _ *request.Entry) {
			*r = *patchedRequest(t, "zimage-a")
			r.Branches[0].Entries[0].Control[0].Hint.Y = 7
		},
		"entry 0: the hint is [20, 64], want [20, 132]": func(r *request.Request, _ *request.Entry) {
			*r = *patchedRequest(t, "zimage-a")
			r.Branches[0].Entries[0].Control[1].Hint = r.Branches[0].Entries[0].Control[0].Hint
		},
	} {
		r := patchedRequest(t, "qwen-a")
		spoil(r, &r.Branches[0].Entries[0])
		_, err := e.Sample(context.Background(), r, nil)
		var f *fault.Error
		if !errors.As(err, &f) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
	}
}
