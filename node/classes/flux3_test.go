package classes

import (
	"context"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/models/tiny"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// writeFLUX3 writes small models of FLUX.3, and an encoder which looks like one with a vision tower.
func writeFLUX3(t *testing.T, root string) {
	t.Helper()
	set, meta, err := tiny.Checkpoint("flux3")
	check(t, err)
	writeModel(t, filepath.Join(root, "diffusion_models/flux3.safetensors"), set, meta["config"], strings.Clone)
	writeGoldenModel(t, "f3-qwen3vl-a", "", filepath.Join(root, "text_encoders/qwen3vl_4b_flux3.safetensors"),
		safetensors.Tensor{
			Name: "visual.deepstack_merger_list.0.norm.weight", DType: engine.F32, Shape: []int{1},
			Data: datafile.Of(make([]byte, 4)),
		})
}

// TestFLUX3FromFilesToPicture draws with the distilled model from two pictures, with guidance, so that prompts count.
func TestFLUX3FromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux3.safetensors", "weight_dtype": "default"}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen3vl_4b_flux3.safetensors", "type": "flux3",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "flux2-vae.safetensors"}},
		"i": {"class_type": "EmptyImage", "inputs": {"width": 48, "height": 80, "batch_size": 1, "color": 3368601}},
		"k": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 32, "batch_size": 1, "color": 336860}},
		"t": {"class_type": "CLIPTextEncode", "inputs": {"text": %q, "clip": ["c", 0]}},
		"n": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["t", 0]}},
		"p": {"class_type": "ReferenceMultiLatent", "inputs": {"positive": ["t", 0], "negative": ["n", 0], "vae": ["v", 0],
			"resolution": "resize", "resolution.megapixels": 0.01, "images.image0": ["i", 0], "images.image1": ["k", 0]}},
		"l": {"class_type": "EmptyFlux2LatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 4, "cfg": 8.0, "sampler_name": "euler",
			"scheduler": "simple", "denoise": 1.0, "model": ["m", 0], "positive": ["p", 0], "negative": ["p", 1],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "f"}}}`)
}

// TestReferencesOfSeveralPictures checks that ReferenceMultiLatent gives what ReferenceLatent gives for one picture
// after another, and the sizes of its latent, with and without pictures.
func TestReferencesOfSeveralPictures(t *testing.T) {
	got := map[string]*value.Latent{}
	lists := map[string]value.Conditioning{}
	keep := graph.Class{
		Name: "KeepText", Output: true,
		Inputs: []graph.Input{graph.Bare("conditioning", "CONDITIONING"), graph.Number("as", "STRING", "")},
		Run: func(c *graph.Call) ([]any, error) {
			lists[c.Str("as")] = c.Conditioning("conditioning")
			return nil, nil
		},
	}
	text := func(v float32) given {
		e := dit.Entry{Context: dit.Array{Rows: 1, Cols: 1, Data: []float32{v}}}
		return given{"CONDITIONING", value.Conditioning{{Entry: e}}}
	}
	roots := chatRoots(t, "../../models/tokenizer/testdata/tiny_qwen")
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: roots,
		Catalogue: All(append(giving(map[string]given{"Yes": text(1), "No": text(2)}, got), keep)...),
	})
	check(t, err)
	defer runner.Close()
	g := newGraph()
	vae := g.add("VAELoader", "vae_name", "flux2-vae.safetensors")
	pictures := [][]any{
		g.add("EmptyImage", "width", 48, "height", 80, "batch_size", 1, "color", 3368601),
		g.add("EmptyImage", "width", 70, "height", 35, "batch_size", 1, "color", 336860),
	}
	yes, no := g.add("Yes"), g.add("No")
	both := func(extra ...any) []any {
		return g.add("ReferenceMultiLatent", append([]any{"positive", yes, "resolution", "keep resolution"}, extra...)...)
	}
	keepAll := func(as string, link []any) {
		g.add("KeepText", "conditioning", link, "as", as+" positive")
		g.add("KeepText", "conditioning", second(link), "as", as+" negative")
		g.add("Keep", "latent", []any{link[0], int64(2)}, "as", as)
	}
	keepAll("two", both("negative", no, "vae", vae, "images.image0", pictures[0], "images.image1", pictures[1]))
	keepAll("one side", both("vae", vae, "images.image3", pictures[1]))
	keepAll("blind", both("negative", no, "images.image0", pictures[0]))
	keepAll("small", g.add("ReferenceMultiLatent", "positive", yes, "resolution", "resize", "resolution.megapixels", 0.25))
	for as, link := range map[string][]any{"chain positive": yes, "chain negative": no} {
		for _, p := range pictures {
			link = g.add("ReferenceLatent", "conditioning", link, "latent", g.add("VAEEncode", "pixels", p, "vae", vae))
		}
		g.add("KeepText", "conditioning", link, "as", as)
	}
	_, err = runner.Run(context.Background(), graph.Job{ID: "r", Workflow: g.workflow(t)}, nil)
	check(t, err)
	for _, side := range []string{" positive", " negative"} {
		if a, b := lists["two"+side], lists["chain"+side]; len(a[0].Latents) != 2 || !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two pictures give other references than one after another", side)
		}
		if a := lists["blind"+side]; len(a[0].Latents) != 0 {
			t.Errorf("%s: without an autoencoder there are %d references", side, len(a[0].Latents))
		}
	}
	if a, b := lists["one side positive"], lists["one side negative"]; len(a[0].Latents) != 1 || !reflect.DeepEqual(a, b) {
		t.Error("without a negative side its output is not that of the positive side")
	}
	for as, want := range map[string][3]int{
		"two": {128, 5, 3}, "one side": {128, 2, 4}, "blind": {4, 128, 128}, "small": {4, 64, 64},
	} {
		s := got[as].Samples
		if [3]int{s.C, s.Y, s.X} != want || slices.ContainsFunc(s.Data, func(v float32) bool { return v != 0 }) {
			t.Errorf("%s: the latent is [%d, %d, %d], or not zeros; want zeros of %v", as, s.C, s.Y, s.X, want)
		}
	}
}
