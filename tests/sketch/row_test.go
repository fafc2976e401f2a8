//go:build sketch

package sketch_test

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"patchbay/array"
	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models"
	"patchbay/models/lora"
	"patchbay/models/published"
	"patchbay/models/tiny"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/tests/scratch"
)

// TestRow draws with the family through the node classes: its own file, its loader type, plans that split it in every
// way. It runs only where the table has its row (tests/family_row_test.go).
func TestRow(t *testing.T) {
	demo, err := filepath.Abs("../../examples/demo")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	scratch.Write(t, filepath.Join(root, "diffusion_models", "sketch.safetensors"), checkpoint(t))
	e, err := parallel.NewPool(parallel.Config{NewOps: func(int, int) (engine.Ops, error) { return ref.New(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r, err := graph.NewRunner(graph.Config{
		Engine: e, Roots: files.Roots{Models: []string{root, demo}}, Catalogue: classes.All(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	exec := func(plan, class string, in map[string]any) any {
		t.Helper()
		out, err := r.Exec(context.Background(), graph.ExecRequest{Class: class, Inputs: in, Plan: plan}, nil)
		if err != nil {
			t.Fatalf("%s %s: %v", class, plan, err)
		}
		return out.Outputs[0]
	}
	model := exec("", "UNETLoader", map[string]any{"unet_name": "sketch.safetensors", "weight_dtype": "default"})
	clip := exec("", "CLIPLoader", map[string]any{"clip_name": "demo_clip.safetensors", "type": "ovis"})
	draw := func(plan, words string) []float32 {
		text := func(s string) any { return exec("", "CLIPTextEncode", map[string]any{"clip": clip, "text": s}) }
		out := exec(plan, "KSampler", map[string]any{
			"seed": int64(1), "steps": int64(2), "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0,
			"model": model, "positive": text(words), "negative": text(""),
			"latent_image": exec("", "EmptyLatentImage", map[string]any{
				"width": int64(96), "height": int64(64), "batch_size": int64(1),
			}),
		})
		samples, _ := out.(*pyjson.Object).Get("samples")
		v, err := value.F32(samples.(*array.Tensor))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	want := draw("", "a big red heart")
	if apart(draw("", "a small blue circle"), want) < 1e-3 {
		t.Error("another prompt draws the same")
	}
	for _, plan := range []string{"ulysses=3", "ring=2", "tensor=2", "cfg=2,pipe=2,warmup=99"} {
		if d := apart(draw(plan, "a big red heart"), want); !(d <= 1e-5) {
			t.Errorf("plan %s is %.3g from one rank", plan, d)
		}
	}
	if !slices.Contains(published.Names(), "sketch-1") {
		t.Errorf("released models: %v", published.Names())
	}
	f, _ := models.Named("sketch")
	d, err := f.Tiny.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	set, _, err := tiny.Checkpoint("sketch")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lora.Match(set, lora.Diffusion(f.Name, f.Names, declared)); err == nil {
		t.Error("a checkpoint passes for adapters")
	}
}

// checkpoint returns the tiny sketch as a file, under the prefix of full checkpoints.
func checkpoint(t *testing.T) []byte {
	t.Helper()
	set, meta, err := tiny.Checkpoint("sketch")
	if err != nil {
		t.Fatal(err)
	}
	var list []safetensors.Tensor
	for _, n := range set.Names() {
		s, _ := set.Get(n)
		list = append(list, safetensors.Tensor{
			Name: "model.diffusion_model." + n, DType: s.DType, Shape: s.Shape, Data: datafile.Of(s.Data),
		})
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, meta, list); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// apart returns the largest difference relative to the largest value of b, or +Inf for NaN.
func apart(a, b []float32) float64 {
	top, worst := 0.0, 0.0
	for i := range b {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if d != d {
			return math.Inf(1)
		}
		top, worst = max(top, math.Abs(float64(b[i]))), max(worst, d)
	}
	return worst / top
}
