package classes

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// usoRun is a recorded run with image tokens before the text (tests/reference/make_patches.py).
type usoRun struct {
	Style   []string // files of feature projectors, in the order in which they were applied
	Refs    [][]int
	Seed    int64
	Steps   int64
	Image   []int
	Context []int
	Shape   []int  `json:"output_shape"`
	model   string // empty: that of the case
	eyes    string // empty: siglip-deep-a
	plan    string
}

func usoFolder(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"uso-a", "uso-b", "diffsynth-a"} {
		writeGolden(t, name, filepath.Join(root, "model_patches", name+".safetensors"))
	}
	for _, name := range []string{"siglip-a", "siglip-deep-a"} {
		_, config, err := goldenweights.Set(name)
		check(t, err)
		writeGoldenWith(t, name, filepath.Join(root, "clip_vision", name+".safetensors"),
			map[string]string{"config": string(config)})
	}
	return root
}

// run runs the nodes of the official workflow and returns the latent and the rows before the text.
func (r *usoRun) run(
	t *testing.T, eng *parallel.Pool, root, name string,
) (latent []float32, rows dit.Array, err error) {
	t.Helper()
	model, eyes := r.model, r.eyes
	if model == "" {
		model, _, _ = strings.Cut(name, "/")
	}
	if eyes == "" {
		eyes = "siglip-deep-a"
	}
	m := (&e2eCase{Model: model}).model(t)
	values := map[string]given{
		"TheModel": {"MODEL", m},
		"ThePrompt": {"CONDITIONING", value.Conditioning{{
			Entry: dit.Entry{Context: dit.Array{
				Rows: r.Context[1], Cols: r.Context[2], Data: golden.Input(name+"/positive", r.Context[1]*r.Context[2]),
			}, Pooled: golden.Input(name+"/pooled", 32)},
			Strength: 1, MaskStrength: 1,
		}}},
		"TheLatent": {"LATENT", &value.Latent{Samples: request.NewLatent(1, r.Shape[1], r.Shape[2], r.Shape[3])}},
	}
	g := newGraph()
	at := g.add("TheModel")
	for i, file := range r.Style {
		class := fmt.Sprint("ThePicture", i)
		values[class] = given{"IMAGE", &picture.Image{
			B: r.Image[0], Y: r.Image[1], X: r.Image[2], C: 3,
			Data: golden.Fill(fmt.Sprintf("input:%s/image%d", name, i), r.Image[0]*r.Image[1]*r.Image[2]*3, 1, 0.5),
		}}
		at = g.add("USOStyleReference", "model", at, "model_patch", g.add("ModelPatchLoader", "name", file+".safetensors"),
			"clip_vision_output", g.add("CLIPVisionEncode", "clip_vision", g.add("CLIPVisionLoader", "clip_name",
				eyes+".safetensors"), "image", g.add(class), "crop", "center"))
	}
	text := g.add("FluxGuidance", "conditioning", g.add("ThePrompt"), "guidance", 3.5)
	for i, shape := range r.Refs {
		class, l := fmt.Sprint("TheReference", i), request.NewLatent(1, 16, shape[0], shape[1])
		l.Data = golden.Input(fmt.Sprintf("%s/ref%d", name, i), l.Len())
		values[class] = given{"LATENT", &value.Latent{Samples: l}}
		text = g.add("ReferenceLatent", "conditioning", text, "latent", g.add(class))
	}
	text = g.add("FluxKontextMultiReferenceLatentMethod", "conditioning", text, "reference_latents_method", "uxo/uno")
	got := map[string]*value.Latent{}
	look := graph.Class{
		Name: "Look", Inputs: []graph.Input{graph.Bare("model", "MODEL")}, Outputs: graph.Slots("MODEL"),
		Run: func(c *graph.Call) ([]any, error) {
			m := graph.Arg[*value.Model](c, "model")
			rows = m.Prefix
			return []any{m}, nil
		},
	}
	runner, err := graph.NewRunner(graph.Config{
		Engine: eng, Roots: files.Roots{Models: []string{root}}, Catalogue: All(append(giving(values, got), look)...),
	})
	check(t, err)
	defer runner.Close()
	g.add("Keep", "latent", g.add("KSampler", "model", g.add("Look", "model", at), "positive", text, "negative", text,
		"latent_image", g.add("TheLatent"), "steps", r.Steps, "cfg", 1.0, "sampler_name", "euler", "scheduler", "simple",
		"seed", r.Seed, "denoise", 1.0), "as", "output")
	if _, err := runner.Run(t.Context(), graph.Job{ID: "uso", Workflow: g.workflow(t), Plan: r.plan}, nil); err != nil {
		return nil, rows, err
	}
	return got["output"].Samples.Data, rows, nil
}

// TestStyleReferencesThroughNodes compares runs with ComfyUI 0.33.0's own nodes: an image before the text, one with
// references besides, and two images.
func TestStyleReferencesThroughNodes(t *testing.T) {
	root, eng := usoFolder(t), engineOf(t, fastOps)
	var runs map[string]*usoRun
	check(t, golden.JSON("modern33/patches.json", &runs))
	compared := 0
	for name, r := range runs {
		if r.Style == nil {
			continue
		}
		for _, r.plan = range []string{"", "ulysses=3", "ring=2", "tensor=3", "pipe=2,patches=2,warmup=99"} {
			got, rows, err := r.run(t, eng, root, name)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if rel := relative(got, tensorOf(t, "modern33/patches.safetensors", name)); !(rel <= 1e-5) {
				t.Errorf("%s %q: relative difference to ComfyUI %.3g, bound 1e-5", name, r.plan, rel)
			}
			last := fmt.Sprintf("%s#rows%d", name, len(r.Style)-1)
			want := tensorOf(t, "modern33/patches.safetensors", last)
			if _, err := goldenrun.Compare(rows.Data[:len(want)], want, 2e-5); err != nil || rows.Rows != 12*len(r.Style) {
				t.Errorf("%s: %d rows: %v", last, rows.Rows, err)
			}
			compared++
		}
	}
	if compared != 15 {
		t.Errorf("%d runs compared, want 15", compared)
	}
}

// TestStyleReferencesAreRefusedByName checks that errors name the node, the field and what is allowed.
func TestStyleReferencesAreRefusedByName(t *testing.T) {
	root, eng := usoFolder(t), engineOf(t, fastOps)
	for name, c := range map[string]struct {
		change      func(*usoRun)
		field, says string
	}{
		"another family": {
			func(r *usoRun) { r.model, r.Context[2], r.Shape[1] = "chroma-a", 72, 16 }, "model_patch",
			"uso-a.safetensors makes rows of 120 values in front of a text, the chroma model",
		},
		"layers":       {func(r *usoRun) { r.Style[0] = "diffsynth-a" }, "model_patch", "is layers for qwenimage models"},
		"a small eye":  {func(r *usoRun) { r.eyes = "siglip-a" }, "clip_vision_output", "fewer than 20 layers"},
		"two pictures": {func(r *usoRun) { r.Image[0] = 2 }, "clip_vision_output", "18 rows of 28 values"},
	} {
		r := &usoRun{
			Style: []string{"uso-a"}, Steps: 1, Image: []int{1, 30, 30}, Context: []int{1, 5, 40},
			Shape: []int{1, 16, 4, 4},
		}
		c.change(r)
		_, _, err := r.run(t, eng, root, "kontext-a/"+name)
		f := fault.From(fmt.Errorf("%w", errors.Join(err)))
		if err == nil || !errors.As(err, &f) || f.Field != c.field || f.Node == "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %+v (%v), want field %q and %q", name, f, err, c.field, c.says)
		}
	}
}
