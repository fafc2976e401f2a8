package classes

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// patchNodes is a run through ModelPatchLoader and the node that applies the patch to a model.
type patchNodes struct {
	Node     string // empty: QwenImageDiffsynthControlnet
	Patch    string
	Seed     int64
	Steps    int64
	CFG      float64
	Strength float64
	Image    []int
	Inpaint  []int `json:"inpaint_image"`
	Mask     []int
	VAE      string `json:"vae"`
	Context  []int
	Shape    []int  `json:"output_shape"`
	model    string // empty: that of the case
}

func (r *patchNodes) run(t *testing.T, eng *parallel.Pool, root, name string) ([]float32, error) {
	t.Helper()
	if r.model == "" {
		r.model, _, _ = strings.Cut(name, "/")
	}
	m := (&e2eCase{Model: r.model}).model(t)
	text := func(side string) value.Conditioning {
		data := golden.Input(name+"/"+side, r.Context[1]*r.Context[2])
		return value.Conditioning{{
			Entry:    dit.Entry{Context: dit.Array{Rows: r.Context[1], Cols: r.Context[2], Data: data}},
			Strength: 1, MaskStrength: 1,
		}}
	}
	shown := func(what string, shape []int, c int) []float32 {
		return golden.Fill("input:"+name+"/"+what, shape[0]*shape[1]*shape[2]*c, 1, 0.5)
	}
	values := map[string]given{
		"TheModel":  {"MODEL", m},
		"ThePrompt": {"CONDITIONING", text("positive")}, "TheOther": {"CONDITIONING", text("negative")},
		"TheLatent": {"LATENT", &value.Latent{
			Samples: request.NewLatent(1, r.Shape[1], r.Shape[len(r.Shape)-2], r.Shape[len(r.Shape)-1]),
		}},
	}
	g := newGraph()
	list := []any{
		"model", g.add("TheModel"), "model_patch", g.add("ModelPatchLoader", "name", r.Patch+".safetensors"),
		"vae", g.add("VAELoader", "vae_name", r.VAE+".safetensors"), "strength", r.Strength,
	}
	for name, shape := range map[string][]int{"image": r.Image, "inpaint_image": r.Inpaint} {
		if shape != nil {
			values["The"+name] = given{"IMAGE", &picture.Image{
				B: shape[0], Y: shape[1], X: shape[2], C: 3, Data: shown(name, shape, 3),
			}}
			list = append(list, name, g.add("The"+name))
		}
	}
	if r.Node == "" {
		r.Node = "QwenImageDiffsynthControlnet"
	}
	if r.Mask != nil {
		values["TheMask"] = given{"MASK", &picture.Mask{
			B: r.Mask[0], Y: r.Mask[1], X: r.Mask[2], Data: shown("mask", r.Mask, 1),
		}}
		list = append(list, "mask", g.add("TheMask"))
	}
	got := map[string]*value.Latent{}
	runner, err := graph.NewRunner(graph.Config{
		Engine: eng, Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(values, got)...),
	})
	check(t, err)
	defer runner.Close()
	g.add("Keep", "latent", g.add("KSampler", "model", g.add(r.Node, list...),
		"positive", g.add("ThePrompt"), "negative", g.add("TheOther"), "latent_image", g.add("TheLatent"), "steps", r.Steps,
		"cfg", r.CFG, "sampler_name", "euler", "scheduler", "simple", "seed", r.Seed, "denoise", 1.0), "as", "output")
	if _, err := runner.Run(t.Context(), graph.Job{ID: "patch", Workflow: g.workflow(t)}, nil); err != nil {
		return nil, err
	}
	return got["output"].Samples.Data, nil
}

// patchFolder returns a models folder with the recorded patches and the files used with them.
func patchFolder(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{
		"diffsynth-a", "diffsynth-inpaint-a", "cn-qwen-a", "vae-kl", "fun-a", "fun-union-a", "fun-broken-a",
	} {
		writeGolden(t, name, filepath.Join(root, "model_patches", name+".safetensors"))
	}
	for _, name := range []string{"wanvae-a", "vae-flux"} {
		_, config, err := goldenweights.Set(name)
		check(t, err)
		writeGoldenWith(t, name, filepath.Join(root, "vae", name+".safetensors"), map[string]string{"config": string(config)})
	}
	return root
}

// fun turns r into a run of Z-Image.
func (r *patchNodes) fun(patch string, image, inpaint []int) {
	r.Node, r.model, r.VAE = "ZImageFunControlnet", "zimage-a", "vae-flux"
	r.Patch, r.Image, r.Inpaint = patch, image, inpaint
}

// TestModelPatchesThroughNodes compares runs with ComfyUI 0.33.0's own nodes. Hints and masks have another size and
// aspect ratio than the latent.
func TestModelPatchesThroughNodes(t *testing.T) {
	root, eng := patchFolder(t), engineOf(t, fastOps)
	var runs map[string]*patchNodes
	check(t, golden.JSON("modern33/patches.json", &runs))
	compared := 0
	for name, r := range runs {
		if r.Patch == "" {
			continue
		}
		compared++
		got, err := r.run(t, eng, root, name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rel := relative(got, tensorOf(t, "modern33/patches.safetensors", name))
		if !(rel <= 1e-5) {
			t.Errorf("%s: relative difference to ComfyUI %.3g, bound 1e-5", name, rel)
		}
	}
	if compared < 7 {
		t.Errorf("%d runs compared, want at least 7", compared)
	}
}

// TestModelPatchesAreRefusedByName checks that errors name the node, the field and what is allowed.
func TestModelPatchesAreRefusedByName(t *testing.T) {
	root, eng := patchFolder(t), engineOf(t, fastOps)
	for name, c := range map[string]struct {
		change      func(*patchNodes)
		field, says string
	}{
		"another family": {
			func(r *patchNodes) { r.model, r.Context[2] = "kontext-a", 128 }, "model_patch",
			"diffsynth-a.safetensors is for qwenimage models of width 120, the model is flux",
		},
		"a control net": {
			func(r *patchNodes) { r.Patch = "cn-qwen-a" }, "name", "looks like a control net: load it with ControlNetLoader",
		},
		"an autoencoder": {
			func(r *patchNodes) { r.Patch = "vae-kl" }, "name", "(supported: zimage (Fun), qwenimage (DiffSynth)",
		},
		"two pictures": {func(r *patchNodes) { r.Image[0] = 2 }, "image", "2 pictures, a patch takes one"},
		"no picture": {
			func(r *patchNodes) { r.fun("fun-union-a", nil, nil) }, "image", "image: none is connected, and fun-union-a",
		},
		"nothing to follow": {
			func(r *patchNodes) { r.fun("fun-a", nil, []int{1, 8, 8}) }, "image", "fun-a.safetensors fills in no inpaint_image",
		},
		"two pictures to fill in": {
			func(r *patchNodes) { r.fun("fun-union-a", nil, []int{2, 8, 8}) }, "inpaint_image", "inpaint_image: 2 pictures",
		},
		"two masks": {
			func(r *patchNodes) { r.Patch, r.Mask = "diffsynth-inpaint-a", []int{2, 4, 4} }, "mask", "2 masks",
		},
	} {
		r := &patchNodes{
			Patch: "diffsynth-a", Seed: 1, Steps: 1, CFG: 1, Strength: 1, Image: []int{1, 16, 16}, VAE: "wanvae-a",
			Context: []int{1, 3, 56}, Shape: []int{1, 16, 4, 4},
		}
		c.change(r)
		_, err := r.run(t, eng, root, "qwen-a/"+name)
		f := fault.From(err)
		if err == nil || !errors.As(err, &f) || f.Field != c.field || f.Node == "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %+v (%v), want field %q and %q", name, f, err, c.field, c.says)
		}
	}
}
