package classes

import (
	"bytes"
	"errors"
	"image"
	"image/png"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// TestQwenImageLayeredFromFilesToPicture runs the official template, which separates an image into two layers.
func TestQwenImageLayeredFromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "qwen_image_layered.safetensors",
			"weight_dtype": "default"}},
		"a": {"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["m", 0], "shift": 1.0}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen_2.5_vl_7b.safetensors", "type": "qwen_image",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "qwen_image_layered_vae.safetensors"}},
		"i": {"class_type": "EmptyImage", "inputs": {"width": 85, "height": 117, "batch_size": 1, "color": 3368601}},
		"g": {"class_type": "GetImageSize", "inputs": {"image": ["i", 0]}},
		"l": {"class_type": "EmptyQwenImageLayeredLatentImage", "inputs": {"width": ["g", 0], "height": ["g", 1],
			"layers": 2, "batch_size": 1}},
		"e": {"class_type": "VAEEncode", "inputs": {"pixels": ["i", 0], "vae": ["v", 0]}},
		"p": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"n": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["c", 0]}},
		"rp": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["p", 0], "latent": ["e", 0]}},
		"rn": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["n", 0], "latent": ["e", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 3, "cfg": 8.0, "sampler_name": "euler",
			"scheduler": "simple", "denoise": 1.0, "model": ["a", 0], "positive": ["rp", 0], "negative": ["rn", 0],
			"latent_image": ["l", 0]}},
		"k": {"class_type": "LatentCut", "inputs": {"samples": ["s", 0], "dim": "t", "index": 1, "amount": 16384}},
		"b": {"class_type": "LatentCutToBatch", "inputs": {"samples": ["k", 0], "dim": "t", "slice_size": 1}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["b", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "y"}}}`)
}

// TestLayersBecomePictures checks that the layers of a latent, cut apart and decoded, are the images of ComfyUI, and
// that the files have their alpha.
func TestLayersBecomePictures(t *testing.T) {
	root := t.TempDir()
	writeGoldenModel(t, "wanvae-b", "", filepath.Join(root, "vae/rgba.safetensors"))
	l, _ := request.LatentOf([]int{1, 16, 3, 4, 5}, golden.Input("wanvae-b/layers", 16*3*4*5))
	var got *picture.Image
	cat := All(append(giving(map[string]given{"TheLatent": {"LATENT", &value.Latent{Samples: l}}}, nil), graph.Class{
		Name: "KeepImage", Output: true, Inputs: []graph.Input{graph.Bare("image", "IMAGE")},
		Run: func(c *graph.Call) ([]any, error) { got = graph.Arg[*picture.Image](c, "image"); return nil, nil },
	})...)
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: cat,
	})
	check(t, err)
	defer runner.Close()
	g := newGraph()
	apart := g.add("LatentCutToBatch", "samples", g.add("TheLatent"), "dim", "t", "slice_size", int64(1))
	made := g.add("VAEDecode", "samples", apart, "vae", g.add("VAELoader", "vae_name", "rgba.safetensors"))
	g.add("KeepImage", "image", made)
	g.add("SaveImage", "images", made, "filename_prefix", "layer")
	result, err := runner.Run(t.Context(), graph.Job{ID: "layers", Workflow: g.workflow(t)}, nil)
	check(t, err)
	want := tensorOf(t, "modern/vae.safetensors", "wanvae-b/layers")
	if got.B != 3 || got.Y != 32 || got.X != 40 || got.C != 4 {
		t.Fatalf("pictures [%d, %d, %d, %d], want [3, 32, 40, 4]", got.B, got.Y, got.X, got.C)
	}
	if rel := relative(got.Data, want); !(rel <= 2e-5) {
		t.Errorf("relative error %.3g, bound 2e-5", rel)
	}
	if len(result.Outputs) != 3 {
		t.Fatalf("%d files, want one a layer", len(result.Outputs))
	}
	for k, o := range result.Outputs {
		decoded, err := png.Decode(bytes.NewReader(o.Data))
		check(t, err)
		p, ok := decoded.(*image.NRGBA)
		if !ok {
			t.Fatalf("file %d is a %T, want one with alpha", k, decoded)
		}
		for i, v := range p.Pix {
			if w := math.Trunc(255 * float64(want[k*len(p.Pix)+i])); !(math.Abs(float64(v)-w) <= 1) {
				t.Fatalf("file %d: byte %d is %d, want %g", k, i, v, w)
			}
		}
	}
}

// TestLayersAreRefusedWhereOneIsMeant checks the errors for layered latents in nodes that support only rows and
// columns, with models of other families, with masks and as references.
func TestLayersAreRefusedWhereOneIsMeant(t *testing.T) {
	layers, _ := request.LatentOf([]int{1, 16, 3, 4, 5}, make([]float32, 16*3*4*5))
	masked := &value.Latent{Samples: layers, NoiseMask: rectangle(4, 5)}
	values := map[string]given{
		"Layers": {"LATENT", &value.Latent{Samples: layers}}, "Masked": {"LATENT", masked},
		"Mask": {"MASK", rectangle(4, 5)}, "Flux": {"MODEL", (&e2eCase{Model: "kontext-a"}).model(t)},
		"Qwen":     {"MODEL", (&e2eCase{Model: "qwen-c"}).model(t)},
		"QwenText": {"CONDITIONING", (&e2eCase{Model: "qwen-c"}).raw(e2eEntry{Tag: "pos", Context: []int{1, 13, 56}})},
		"FluxText": {"CONDITIONING", (&e2eCase{Model: "kontext-a"}).raw(e2eEntry{Tag: "pos", Context: []int{1, 13, 128}})},
	}
	runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Catalogue: All(giving(values,
		map[string]*value.Latent{})...)})
	check(t, err)
	defer runner.Close()
	sampler := func(g *graphMaker, model string, positive []any, latent string) []any {
		return g.add("KSampler", "model", g.add(model), "positive", positive, "negative", positive, "latent_image",
			g.add(latent), "seed", int64(1), "steps", int64(1), "cfg", 2.0, "sampler_name", "euler", "scheduler", "simple",
			"denoise", 1.0)
	}
	for want, last := range map[string]func(g *graphMaker) []any{
		"samples: has 3 layers, this node takes one": func(g *graphMaker) []any {
			return g.add("LatentFlip", "samples", g.add("Layers"), "flip_method", "y-axis: horizontally")
		},
		"this node takes one: cut them apart with LatentCutToBatch": func(g *graphMaker) []any {
			return g.add("SetLatentNoiseMask", "samples", g.add("Layers"), "mask", g.add("Mask"))
		},
		"latent_image: has 3 layers, which flux models do not take": func(g *graphMaker) []any {
			return sampler(g, "Flux", g.add("FluxText"), "Layers")
		},
		"positive: has a mask, and the latent 3 layers": func(g *graphMaker) []any {
			text := g.add("ConditioningSetMask", "conditioning", g.add("QwenText"), "mask", g.add("Mask"), "strength", 1.0,
				"set_cond_area", "default")
			return sampler(g, "Qwen", text, "Layers")
		},
		"entry 0 has an area, a control net or a model patch, and the latent 3 layers": func(g *graphMaker) []any {
			text := g.add("ConditioningSetArea", "conditioning", g.add("QwenText"), "width", int64(64), "height", int64(64),
				"x", int64(0), "y", int64(0), "strength", 1.0)
			return sampler(g, "Qwen", text, "Layers")
		},
		"a reference latent has 3 pictures of 16 channels": func(g *graphMaker) []any {
			return sampler(g, "Qwen", g.add("ReferenceLatent", "conditioning", g.add("QwenText"), "latent", g.add("Layers")),
				"Layers")
		},
	} {
		g := newGraph()
		g.add("Keep", "latent", last(g), "as", "output")
		_, err := runner.Run(t.Context(), graph.Job{ID: "refused", Workflow: g.workflow(t)}, nil)
		refused := new(fault.Error)
		if !errors.As(err, &refused) || !strings.Contains(refused.Text, want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
	}
	g := newGraph() // a mask of a latent is scaled to its layers
	g.add("Keep", "latent", sampler(g, "Qwen", g.add("QwenText"), "Masked"), "as", "output")
	if _, err := runner.Run(t.Context(), graph.Job{ID: "masked", Workflow: g.workflow(t)}, nil); err != nil {
		t.Errorf("a latent of layers with a mask: %v", err)
	}
}
