package classes

import (
	"bytes"
	"context"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"patchbay/array"
	"patchbay/engine/safetensors"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

func demoRoots() files.Roots {
	return files.Roots{Models: []string{filepath.Join("..", "..", "examples", "demo")}}
}

func demoWorkflow(t *testing.T) *graph.Workflow {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "examples", "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	w, failure := graph.ParseWorkflowJSON(data)
	if failure != nil {
		t.Fatal(failure)
	}
	return w
}

// TestDemoDrawsTheHeart runs examples/demo.json with the trained demo checkpoint and checks that the image has a red
// shape in the middle of a pale blue background.
func TestDemoDrawsTheHeart(t *testing.T) {
	runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Roots: demoRoots(), Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close()
	var types []string
	result, err := runner.Run(context.Background(), graph.Job{ID: "demo", Workflow: demoWorkflow(t), Preview: true},
		func(e graph.Event) { types = append(types, e.Type) })
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Outputs) != 1 || result.Outputs[0].Width != 128 || result.Outputs[0].Height != 128 ||
		result.Outputs[0].Prefix != "demo" {
		t.Fatalf("outputs %+v, want one picture of 128 x 128", result.Outputs)
	}
	count := func(kind string) (n int) {
		for _, v := range types {
			if v == kind {
				n++
			}
		}
		return n
	}
	if count("progress") != 12 || count("preview") != 12 || count("executed") != 1 {
		t.Errorf("%d progress, %d preview, %d executed events, want 12, 12, 1", count("progress"),
			count("preview"), count("executed"))
	}
	im, err := png.Decode(bytes.NewReader(result.Outputs[0].Data))
	if err != nil {
		t.Fatal(err)
	}
	red, blue := 0, 0
	for y := range 128 {
		for x := range 128 {
			r, g, b, _ := im.At(x, y).RGBA()
			switch {
			case r > 0xa000 && g < 0x6000 && b < 0x7000:
				red++
			case b > 0xa000 && b > r:
				blue++
			}
		}
	}
	if red < 1000 || blue < 4000 {
		t.Errorf("%d red and %d pale blue pixels of 16384, want a big red heart on pale blue", red, blue)
	}
	prompt, _, err := picture.WorkflowFrom(result.Outputs[0].Data)
	if err != nil || !bytes.Equal(prompt, demoWorkflow(t).JSON()) {
		t.Errorf("the workflow inside the picture differs: %v\n%s", err, prompt)
	}
	again, err := runner.Run(context.Background(), graph.Job{ID: "again", Workflow: demoWorkflow(t)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Executed) != 0 || len(again.Outputs) != 1 || !bytes.Equal(again.Outputs[0].Data, result.Outputs[0].Data) {
		t.Errorf("the second run executed %v, want everything from the cache", again.Executed)
	}
}

// demoReference reads tensors that PyTorch computed from the demo checkpoint.
func demoReference(t *testing.T) func(name string) []float32 {
	t.Helper()
	file, err := safetensors.Open(filepath.Join("..", "..", "examples", "demo", "reference", "prompt0.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return func(name string) []float32 {
		t.Helper()
		e, ok := file.Entry(name)
		if !ok {
			t.Fatalf("the reference has no %s", name)
		}
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// exec runs one node and returns its first output.
func exec(t *testing.T, r *graph.Runner, class string, inputs map[string]any) any {
	t.Helper()
	out, err := r.Exec(context.Background(), graph.ExecRequest{Class: class, Inputs: inputs}, nil)
	if err != nil {
		t.Fatalf("exec %s: %v", class, err)
	}
	return out.Outputs[0]
}

func values(t *testing.T, v any) []float32 {
	t.Helper()
	f, err := value.F32(v.(*array.Tensor))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDemoMatchesPyTorch compares text states, the sampled latent and the decoded image of Runner.Exec with PyTorch's
// for the same files. The bounds are a few times the difference between f32 kernels.
func TestDemoMatchesPyTorch(t *testing.T) {
	want := demoReference(t)
	engine := engineOf(t, fastOps)
	runner, err := graph.NewRunner(graph.Config{Engine: engine, Roots: demoRoots(), Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close()
	within := func(what string, got, want []float32, bound float64) {
		t.Helper()
		rel := relative(got, want)
		t.Logf("%s: relative error %.2g, bound %.2g", what, rel, bound)
		if rel > bound {
			t.Errorf("%s: relative error %.3g, bound %.3g", what, rel, bound)
		}
	}
	clip := exec(t, runner, "DualCLIPLoader",
		map[string]any{"clip_name1": "demo_t5.safetensors", "clip_name2": "demo_clip.safetensors", "type": "flux"})
	positive := exec(t, runner, "CLIPTextEncode",
		map[string]any{"text": "a big red heart on a pale blue background", "clip": clip})
	negative := exec(t, runner, "CLIPTextEncode", map[string]any{"text": "", "clip": clip})
	entry := positive.([]any)[0].([]any)
	within("t5 states", values(t, entry[0]), want("t5_output"), 2e-5)
	pooled, _ := entry[1].(*pyjson.Object).Get("pooled_output")
	within("pooled", values(t, pooled), want("clip_pooled"), 2e-5)

	model, ok := runner.Value(exec(t, runner, "UNETLoader",
		map[string]any{"unet_name": "demo_flux.safetensors", "weight_dtype": "default"}).(graph.Handle).ID)
	if !ok {
		t.Fatal("the handle of UNETLoader is gone")
	}
	m := model.(*value.Model)
	pos, err := value.ImportValue("CONDITIONING", "positive", positive)
	if err != nil {
		t.Fatal(err)
	}
	neg, err := value.ImportValue("CONDITIONING", "negative", negative)
	if err != nil {
		t.Fatal(err)
	}
	g := &value.Guider{
		Model: m, Rule: request.Guider{Kind: request.GuideCFG, CFG: 3.5},
		Branches: []value.GuiderBranch{
			{Name: "positive", Conditioning: pos.(value.Conditioning)},
			{Name: "negative", Conditioning: neg.(value.Conditioning)},
		},
	}
	req, err := value.Lower(value.Lowering{
		Guider: *g, Noise: value.Noise{Seed: 1}, Sampler: value.Sampler{Name: "euler"}, Sigmas: want("sigmas"),
		Latent: &value.Latent{Samples: request.NewLatent(1, 16, 16, 16)},
	})
	if err != nil {
		t.Fatal(err)
	}
	req.Noise.Data = want("noise")
	result, err := engine.Sample(context.Background(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	within("sampled latent", result.Latent.Data, want("final_latent"), 1e-4)

	samples := want("final_latent")
	m.Format.FromModel(samples, 16*16)
	vae := exec(t, runner, "VAELoader", map[string]any{"vae_name": "demo_ae.safetensors"})
	image := exec(t, runner, "VAEDecode", map[string]any{
		"vae":     vae,
		"samples": pyjson.NewObject("samples", array.New(samples, 1, 16, 16, 16)),
	})
	raw := want("decoded") // [1, 3, 128, 128], -1..1
	expected := make([]float32, len(raw))
	for i, v := range raw {
		c, p := i/(128*128), i%(128*128)
		expected[p*3+c] = min(max((v+1)/2, 0), 1)
	}
	within("picture", values(t, image), expected, 2e-5)
}
