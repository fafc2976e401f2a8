package serve_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/worker"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/tests/golden"
)

// goldenSample is a case of e2e.json, with the fields that FLUX uses.
type goldenSample struct {
	Node, Model, Sampler, Scheduler, What, Latent string
	Seed                                          uint64
	Steps                                         int
	CFG, Denoise                                  float64
	Start                                         int    `json:"start_at_step"`
	End                                           int    `json:"end_at_step"`
	Leftover                                      string `json:"return_with_leftover_noise"`
	Sigmas                                        []float32
	Shape                                         []int `json:"latent_shape"`
	Positive, Negative                            []goldenCond
}

type goldenCond struct {
	Tag             string
	Context, Pooled []int
	Guidance        any
}

// goldenRoot writes golden models into a models folder and returns the folder and the files' header hashes by model.
func goldenRoot(t *testing.T, models ...string) (dir string, fingerprints map[string]string) {
	t.Helper()
	dir, fingerprints = t.TempDir(), map[string]string{}
	for _, folder := range []string{"diffusion_models", "model_patches", "controlnet"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range models {
		folder := "diffusion_models"
		if strings.HasPrefix(name, "diffsynth") || strings.HasPrefix(name, "fun") || strings.HasPrefix(name, "uso") {
			folder = "model_patches"
		} else if strings.HasPrefix(name, "cn-") {
			folder = "controlnet"
		}
		set, config, err := goldenweights.Set(name)
		if err != nil {
			t.Fatal(err)
		}
		if folder == "controlnet" { // what names and shapes do not tell of its model
			config = []byte(`{"axes_dims_rope": [8, 16, 16]}`)
		}
		var entries []safetensors.Tensor
		for _, n := range set.Names() {
			st, _ := set.Get(n)
			entries = append(entries, safetensors.Tensor{Name: n, DType: st.DType, Shape: st.Shape, Data: datafile.Of(st.Data)})
		}
		path := filepath.Join(dir, folder, name+".safetensors")
		f, err := os.Create(path)
		if err == nil {
			err = safetensors.Write(f, map[string]string{"config": string(config)}, entries)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		open, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		fingerprints[name] = open.HeaderHash()
		if err := open.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir, fingerprints
}

// realRig returns a rig whose executor computes, with the models in dirs.
func realRig(t *testing.T, dirs ...string) *ipctest.Rig {
	t.Helper()
	eng, err := parallel.NewPool(parallel.Config{NewOps: testOps})
	if err != nil {
		t.Fatal(err)
	}
	runner, err := graph.NewRunner(graph.Config{Engine: eng, Roots: files.Roots{Models: dirs}, Catalogue: classes.All()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runner.Close(); eng.Close() })
	answers := worker.Classes(classes.All(), files.Roots{Models: dirs}, nil, nil)
	return ipctest.NewTunedRig(t, func(c *serve.ServiceConfig) { c.Model = answers.Model }, jobs.Config{},
		jobs.OutputsConfig{}, worker.NewLocal("local", runner, 0))
}

func f32(v []float32, shape ...int) *wire.Tensor {
	n := array.New(v, shape...)
	return &wire.Tensor{Tensor: array.Tensor{DType: n.DType, Shape: n.Shape, Data: n.Data}}
}

func floats(t *testing.T, x *wire.Tensor) []float32 {
	t.Helper()
	v, err := value.F32(&x.Tensor)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// message returns the request that a host would send for the case. guided says whether the model takes a guidance.
func (g *goldenSample) message(t *testing.T, guided bool) *message.SampleRequest {
	t.Helper()
	b, y, x := g.Shape[0], g.Shape[2], g.Shape[3]
	n := 16 * y * x
	format := latent.FLUX()
	start := make([]float32, b*n)
	if in, ok := strings.CutPrefix(g.Latent, "input:"); ok {
		start = golden.Input(in, b*n)
		format.ToModel(start, y*x)
	}
	var items []int
	if strings.Contains(g.What, "items 3 and 1") {
		items = []int{3, 1}
	}
	noise, _, err := sampling.PrepareNoise(g.Seed, b, n, items)
	if err != nil {
		t.Fatal(err)
	}
	q := &message.SampleRequest{
		Model: message.ModelRef{File: g.Model + ".safetensors"}, Sampler: message.SamplerRef{Name: g.Sampler},
		Sampling: &message.SamplingRef{Bases: []string{"ModelSamplingFlux", "CONST"}},
		Noise:    f32(noise, b, 16, y, x), Latent: f32(start, b, 16, y, x), Seed: g.Seed, CFG: &g.CFG,
		Preview: "latent", WantX0: true,
	}
	shift := 1.15
	if !guided {
		shift, q.Sampling.Bases[0] = 1, "ModelSamplingDiscreteFlow"
	}
	if strings.HasPrefix(g.What, "ModelSamplingFlux 1.15") {
		shift = sampling.FluxShift(1.15, 0.5, 96, 64)
	}
	q.Sampling.Shift = &shift
	line, err := sampling.NewFlux(shift)
	if !guided {
		line, err = sampling.NewFlow(shift, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	if g.Node == "SamplerCustomAdvanced" {
		q.Sampler.Name, q.CFG = "euler", nil
		g.Negative = nil
	}
	sigmas := g.Sigmas
	if sigmas == nil {
		d := g.Denoise
		if g.Node == "KSamplerAdvanced" {
			d = 1
		}
		if sigmas, err = sampling.KSamplerSigmas(line, g.Sampler, g.Scheduler, g.Steps, d); err != nil {
			t.Fatal(err)
		}
		if g.Node == "KSamplerAdvanced" {
			sigmas = sampling.CutSteps(sigmas, g.Start, g.End, g.Leftover == "disable")
		}
	}
	q.Sigmas = f32(sigmas, len(sigmas))
	q.Conds.Positive = g.conds(g.Positive, guided)
	if g.Negative != nil {
		negative := g.conds(g.Negative, guided)
		q.Conds.Negative = &negative
	}
	return q
}

func (g *goldenSample) conds(list []goldenCond, guided bool) []message.CondRef {
	var out []message.CondRef
	for _, e := range list {
		base := "e2e/" + g.Model + "/" + e.Tag + "/"
		c := message.CondRef{ModelConds: map[string]*wire.Tensor{
			"c_crossattn": f32(golden.Input(base+"context", e.Context[1]*e.Context[2]), e.Context...),
			"y":           f32(golden.Input(base+"pooled", e.Pooled[1]), e.Pooled...),
		}}
		switch v := e.Guidance.(type) {
		case float64:
			c.ModelConds["guidance"] = f32([]float32{float32(v)}, 1)
		case string: // ComfyUI's extra_conds fills in 3.5, also for FLUX without the input
			c.ModelConds["guidance"] = f32([]float32{3.5}, 1)
		}
		out = append(out, c)
	}
	return out
}

// TestGoldenRunsThroughSample sends every FLUX case of e2e.json as a sample message over frames, and checks the result
// to the tolerance of tests/golden/README.md section 2.
func TestGoldenRunsThroughSample(t *testing.T) {
	var cases map[string]goldenSample
	if err := golden.JSON("e2e.json", &cases); err != nil {
		t.Fatal(err)
	}
	results, err := golden.Open("e2e.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	dir, prints := goldenRoot(t, "flux-a", "flux-b", "flux-c")
	c := ipctest.DialRig(t, realRig(t, dir))
	ran, worst := 0, 0.0
	for name, g := range cases {
		if !strings.HasPrefix(name, "flux-") {
			continue
		}
		ran++
		q := g.message(t, g.Model != "flux-b")
		q.Model.Fingerprint = prints[g.Model]
		var steps []int
		var x0 *wire.Tensor
		done, err := ipctest.Sample(context.Background(), c, q,
			func(p *message.SampleReply) { steps, x0 = append(steps, p.Step), p.X0 })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := func(key string) []float32 {
			e, ok := results.Entry(key)
			if !ok {
				t.Fatalf("no golden %s", key)
			}
			v, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		got := floats(t, done.X)
		latent.FLUX().FromModel(got, 1)
		rel := apart(got, want(name))
		worst = math.Max(worst, rel)
		if rel > 1e-4 {
			t.Errorf("%s: relative error %.3g, bound 1e-4", name, rel)
		}
		if n := q.Sigmas.Shape[0] - 1; len(steps) != n || !slices.IsSorted(steps) || steps[n-1] != n {
			t.Errorf("%s: progress %v, want 1 to %d", name, steps, n)
		}
		if !slices.Equal(x0.Shape, done.X.Shape) || !slices.Equal(done.X0.Data, x0.Data) {
			t.Errorf("%s: the last progress must carry the x0 of the whole batch, %v, that of done; got %v", name,
				done.X.Shape, x0.Shape)
		}
		if g.Node == "SamplerCustomAdvanced" {
			v := floats(t, done.X0)
			latent.FLUX().FromModel(v, 1)
			if rel := apart(v, want(name+"#denoised_output")); rel > 1e-4 {
				t.Errorf("%s: x0: relative error %.3g, bound 1e-4", name, rel)
			}
		}
	}
	if ran < 13 {
		t.Errorf("only %d cases ran, 13 are recorded", ran)
	}
	t.Logf("%d cases, worst relative error %.2g", ran, worst)
}

// apart returns the largest difference over the largest reference value, or +Inf for other lengths and NaN.
func apart(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst, top := 0.0, 1e-30
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst = math.Max(worst, d)
		top = math.Max(top, math.Abs(float64(want[i])))
	}
	return worst / top
}
