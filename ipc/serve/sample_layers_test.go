package serve_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/tests/golden"
)

// TestSampleOfLayersMatchesComfyUI checks a recorded run of Qwen-Image-Layered, whose latent has an axis of layers, on
// one rank and on four.
func TestSampleOfLayersMatchesComfyUI(t *testing.T) {
	const name, model = "qwen-c/image-to-layers", "qwen-c"
	var cases map[string]struct {
		Seed  uint64
		Steps int
		CFG   float64
		Shape []int `json:"latent_shape"`
	}
	if err := golden.JSON("modern/e2e.json", &cases); err != nil {
		t.Fatal(err)
	}
	g := cases[name]
	results, err := golden.Open("modern/e2e.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	e, _ := results.Entry(name)
	want, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	n := 1
	for _, s := range g.Shape {
		n *= s
	}
	noise, _, err := sampling.PrepareNoise(g.Seed, 1, n, nil)
	if err != nil {
		t.Fatal(err)
	}
	line, err := sampling.NewFlow(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	sigmas, err := sampling.KSamplerSigmas(line, "euler", "simple", g.Steps, 1)
	if err != nil {
		t.Fatal(err)
	}
	y, x := g.Shape[3], g.Shape[4]
	shown := golden.Input("e2e/"+model+"/picture9x13", 16*y*x)
	latent.Wan21().ToModel(shown, y*x)
	cond := func(tag string, tokens int) []message.CondRef {
		text := golden.Input("e2e/"+model+"/"+tag+"/context", tokens*56)
		return []message.CondRef{{
			ModelConds: map[string]*wire.Tensor{"c_crossattn": f32(text, 1, tokens, 56)},
			References: []*wire.Tensor{f32(shown, 1, 16, y, x)},
		}}
	}
	dir, prints := goldenRoot(t, model)
	c := ipctest.DialRig(t, realRig(t, dir))
	shift, negative := 1.0, cond("neg", 6)
	ask := func(plan string, shape []int) *message.SampleRequest {
		q := &message.SampleRequest{
			Model:   message.ModelRef{File: model + ".safetensors", Fingerprint: prints[model]},
			Sampler: message.SamplerRef{Name: "euler"}, Sigmas: f32(sigmas, len(sigmas)),
			Sampling: &message.SamplingRef{Bases: []string{"ModelSamplingDiscreteFlow", "CONST"}, Shift: &shift},
			Noise:    f32(noise, shape...), Latent: f32(make([]float32, n), shape...), Seed: g.Seed, CFG: &g.CFG,
			Preview: "latent", Plan: plan,
		}
		q.Conds.Positive, q.Conds.Negative = cond("pos", 13), &negative
		return q
	}
	for _, plan := range []string{"", "cfg=2,ulysses=2"} {
		var x0 *wire.Tensor
		done, err := ipctest.Sample(context.Background(), c, ask(plan, g.Shape),
			func(p *message.SampleReply) { x0 = p.X0 })
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(done.X.Shape, g.Shape) || !slices.Equal(x0.Shape, g.Shape) {
			t.Errorf("%q: x %v, x0 %v, want %v", plan, done.X.Shape, x0.Shape, g.Shape)
		}
		got := floats(t, done.X)
		latent.Wan21().FromModel(got, n/16)
		if rel := apart(got, want); !(rel <= 1e-4) {
			t.Errorf("%q: relative error %.3g, bound 1e-4", plan, rel)
		}
	}
	q := ask("", g.Shape)
	q.Noise = f32(noise, 1, 16, 1, g.Shape[2]*y, x)
	if _, err := ipctest.Sample(context.Background(), c, q, nil); err == nil || !strings.Contains(err.Error(), "noise") {
		t.Errorf("noise of one layer for a latent of three: %v", err)
	}
}
