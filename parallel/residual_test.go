package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// controlRun is a recorded evaluation of a network with the residuals of a control net (tests/golden/modern section
// 8).
type controlRun struct {
	X          []int     `json:"x"`
	Context    []int     `json:"context"`
	Y          []int     `json:"y"`
	Timesteps  []float32 `json:"timesteps"`
	Guidance   []float32 `json:"guidance"`
	residuals  []rank.Residual
	want       []float32 // [n, C, Y, X]
	name, main string
}

// controlRuns returns the runs recorded in a file for the main model main.
func controlRuns(t *testing.T, file, main string, spec *dit.Spec) (out []controlRun) {
	t.Helper()
	var all map[string]controlRun
	var weights map[string]struct {
		Main string `json:"main_model"`
	}
	if err := golden.JSON("modern/"+file+".json", &all); err != nil {
		t.Fatal(err)
	}
	if err := golden.JSON("modern/weights_"+file+".json", &weights); err != nil {
		t.Fatal(err)
	}
	f, err := golden.Open("modern/" + file + ".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	get := func(name string) []float32 {
		e, ok := f.Entry(name)
		if !ok {
			return nil
		}
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, run := range all {
		net, _, _ := strings.Cut(name, "/")
		if run.want = get(name + "#main_strength_0.7"); run.want == nil || weights[net].Main != main {
			continue
		}
		run.name, run.main = name, main
		blocks, first := spec.Blocks, 0
		for _, part := range []string{"input", "output"} { // double blocks, then single ones
			var at []int
			for ; first < len(blocks) && (part == "output") == (blocks[first].Kind == dit.Single); first++ {
				at = append(at, first)
			}
			for k := 0; len(at) > 0; k++ {
				rows := get(fmt.Sprintf("%s#%s.%d", name, part, k))
				if rows == nil {
					break
				}
				for i := range rows {
					rows[i] *= 0.7
				}
				n := 1
				if get(fmt.Sprintf("%s#%s.%d", name, part, k+1)) == nil {
					n = len(at)
				}
				run.residuals, at = append(run.residuals, rank.Residual{Blocks: at[:n], Rows: rows}), at[n:]
			}
		}
		out = append(out, run)
	}
	return out
}

// request returns the evaluation of item i as a run of one step, whose x0 is x - sigma times the network's output.
func (run controlRun) request(g goldenModel, i int) (r *request.Request, want []float32) {
	n, spec := run.X[0], g.model.Spec
	l := request.NewLatent(1, run.X[1], run.X[len(run.X)-2], run.X[len(run.X)-1])
	cut := func(v []float32) []float32 { return v[i*len(v)/n : (i+1)*len(v)/n] }
	input := func(what string, shape []int) []float32 {
		size := 1
		for _, s := range shape {
			size *= s
		}
		return cut(golden.Input(run.name+"/"+what, size))
	}
	x, sigma := input("x", run.X), run.Timesteps[i]
	e := request.Entry{Strength: 1}
	e.Context = dit.Array{Rows: run.Context[1], Cols: run.Context[2], Data: input("context", run.Context)}
	if run.Y != nil {
		e.Pooled = input("y", run.Y)
	}
	if run.Guidance != nil && spec.TakesGuidance {
		e.Guidance = &run.Guidance[i]
	}
	for _, c := range run.residuals {
		e.Residuals = append(e.Residuals, rank.Residual{Blocks: c.Blocks, Rows: cut(c.Rows)})
	}
	noise := l
	noise.Data = make([]float32, len(x))
	want = append([]float32(nil), x...)
	for k, v := range cut(run.want) {
		noise.Data[k], want[k] = x[k]/sigma, x[k]-sigma*v
	}
	return &request.Request{
		Model: g.model, Sampling: g.sampling, Sampler: "euler", Sigmas: []float32{sigma, 0}, Latent: l, Noise: noise,
		Guider: request.Guider{Kind: request.GuideBasic}, Branches: []request.Branch{{
			Name:    "positive",
			Entries: []request.Entry{e},
		}},
	}, want
}

// TestResidualsMatchGolden checks that the recorded outputs of ComfyUI's control nets, added after the blocks, give
// the recorded outputs of its networks.
func TestResidualsMatchGolden(t *testing.T) {
	e := newEngine(t)
	for _, c := range []struct{ file, main string }{{"control_qwen", "qwen-a"}} {
		g := openGolden(t, c.main)
		runs := controlRuns(t, c.file, c.main, g.model.Spec)
		if len(runs) == 0 {
			t.Fatalf("no run of %s", c.main)
		}
		for _, run := range runs {
			for i := range run.X[0] {
				for _, text := range []string{"", "ulysses=2", "pipe=2,patches=2,warmup=1", "tensor=2,form=scatter"} {
					t.Run(fmt.Sprintf("%s/%d/%s", run.name, i, text), func(t *testing.T) {
						r, want := run.request(g, i)
						r.Plan = text
						got, err := e.Sample(context.Background(), r, nil)
						if err != nil {
							t.Fatal(err)
						}
						if rel := relative(got.Latent.Data, want); !(rel <= 2e-5) {
							t.Errorf("relative difference to ComfyUI %.3g, bound 2e-5", rel)
						}
					})
				}
			}
		}
	}
}

// controlled adds residuals to entries: some shared by all items, one with rows of each item.
func controlled(r *request.Request) {
	spec, n := r.Model.Spec, r.Latent.Grid(r.Model.Spec).Tokens()*r.Model.Spec.Width
	last := len(spec.Blocks) - 1
	r.Branches[0].Entries[0].Residuals = []rank.Residual{
		{Blocks: []int{0, last}, Rows: golden.Input("control0", n)},
		{Blocks: []int{1}, Rows: golden.Input("control1", r.Latent.B*n)},
	}
	r.Branches[1].Entries[0].Residuals = []rank.Residual{{Blocks: []int{last - 1}, Rows: golden.Input("control2", n)}}
}

// TestExactPlansAddResidualsAsOneRank checks that every rank adds its rows after its blocks, whatever the plan.
func TestExactPlansAddResidualsAsOneRank(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for k, c := range []struct {
		name   string
		y, x   int
		engine *Pool
	}{
		{"flux-c", 7, 11, newEngine(t)},
		{"sd3-b", 5, 7, newDeferredEngine(t, 7)},
		{"qwen-a", 7, 9, newEngine(t)},
	} {
		g := openGolden(t, c.name)
		r := parityRequest(t, g, c.name, 2, c.y, c.x, 2)
		plain, err := c.engine.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		controlled(r)
		want, err := c.engine.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rel := relative(want.Latent.Data, plain.Latent.Data); !(rel > 1e-2) {
			t.Fatalf("residuals move the picture of %s by %.3g", c.name, rel)
		}
		for _, plan := range somePlans(kinds(exactPlans()), k, 8) {
			plan = planFor(g.model.Spec, plan)
			t.Run(fmt.Sprintf("%s/%s", c.name, plan), func(t *testing.T) {
				r := *r
				r.Plan = plan
				got, err := c.engine.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= 1e-5) {
					t.Errorf("relative difference to one rank %.3g, bound 1e-5", rel)
				}
			})
		}
	}
}

// TestPatchesAddTheirOwnResiduals checks that residuals do not move a stale pipeline farther from one rank. Adding the
// rows of other patches would make the difference more than ten times as large (1.0 instead of 0.04).
func TestPatchesAddTheirOwnResiduals(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	e := newEngine(t)
	g := openGolden(t, "flux-c")
	r := parityRequest(t, g, "flux-c", 1, 7, 11, 4)
	difference := func(plan string) float64 {
		one, many := *r, *r
		many.Plan = plan
		want, err := e.Sample(context.Background(), &one, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Sample(context.Background(), &many, nil)
		if err != nil {
			t.Fatal(err)
		}
		return relative(got.Latent.Data, want.Latent.Data)
	}
	for _, plan := range []string{"pipe=2,patches=3,warmup=1", "pipe=2,ulysses=2,patches=4,warmup=1,sync=spread"} {
		before := difference(plan)
		saved := *r
		controlled(r)
		after := difference(plan)
		*r = saved
		r.Branches[0].Entries[0].Residuals, r.Branches[1].Entries[0].Residuals = nil, nil
		t.Logf("%s: stale patches differ by %.3g, with residuals by %.3g", plan, before, after)
		if !(after < 3*before) {
			t.Errorf("%s: with residuals stale patches differ by %.3g, without by %.3g", plan, after, before)
		}
	}
}

// TestForecastsHoldWithResiduals checks that residuals take no extra memory: they use what a block has released.
func TestForecastsHoldWithResiduals(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: planning has no goroutines of its own")
	}
	for _, f := range families(t) {
		if f.name != "flux" && f.name != "sd3" && f.name != "qwenimage" {
			continue
		}
		e := newRecordingEngine(t)
		r := tinyRequest(t, f.name, 2, f.y, f.x, 4)
		controlled(r)
		for _, text := range []string{
			"", "ring=2,ulysses=3", "cfg=2,pipe=2,tensor=2,patches=2", "pipe=2,patches=3,sync=spread",
		} {
			t.Run(f.name+"/"+text, func(t *testing.T) { compareRecorded(t, e, *r, text, 0) })
		}
	}
}

// TestBadResidualsAreRefused checks that the error names the branch and what is wrong.
func TestBadResidualsAreRefused(t *testing.T) {
	e := newEngine(t)
	for _, c := range []struct {
		model string
		spoil func(*request.Entry)
		want  string
	}{
		{"flux-c", func(e *request.Entry) { e.Residuals[0].Rows = e.Residuals[0].Rows[1:] }, "another family"},
		{"flux-c", func(e *request.Entry) { e.Residuals[0].Blocks[0] = 99 }, "want blocks 0 to"},
		{"flux-c", func(e *request.Entry) { e.Residuals[1].Blocks[0] = 0 }, "each once"},
		{"flux-c", func(e *request.Entry) { e.Area = request.Area{H: 4, W: 4} }, "an area"},
		{"flux-c", func(e *request.Entry) { e.Residuals[0].Rows[5] = float32(math.NaN()) }, "not finite"},
		{"pixart-b", func(e *request.Entry) { e.Residuals[0].Blocks = nil }, "do not take"},
	} {
		g := openGolden(t, c.model)
		r := parityRequest(t, g, c.model, 1, 4, 6, 1)
		controlled(r)
		c.spoil(&r.Branches[0].Entries[0])
		_, err := e.Sample(context.Background(), r, nil)
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != "positive" || !strings.Contains(f.Text, c.want) {
			t.Errorf("%s: got %v, want a refusal of positive with %q", c.model, err, c.want)
		}
	}
}
