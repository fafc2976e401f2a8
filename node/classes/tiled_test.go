package classes

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"testing"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
)

// formula returns the tensor called name by the formula of the golden numbers.
func formula(name string, scale, offset float64, shape ...int) *array.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return array.New(golden.Fill("input:"+name, n, scale, offset), shape...)
}

// TestTilesEqualComfyUI compares the nodes that encode and decode in tiles with those of ComfyUI: one pass for
// autoencoders of videos, three for others. A batch of up to four pictures is one frame of a video, the first.
func TestTilesEqualComfyUI(t *testing.T) {
	var cases map[string]struct {
		Node, Model string
		Input       []int
		Tile        int `json:"tile_size"`
		Overlap     int
	}
	check(t, golden.JSON("modern/vae.json", &cases))
	root := t.TempDir()
	for _, model := range []string{"wanvae-a", "wanvae-b", "vae-kl"} {
		writeGoldenModel(t, model, "", filepath.Join(root, "vae", model+".safetensors"))
	}
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	vae := func(model string) any {
		return exec(t, runner, "VAELoader", map[string]any{"vae_name": model + ".safetensors"})
	}
	compare := func(key string, got any) {
		t.Helper()
		if latent, ok := got.(*pyjson.Object); ok {
			got, _ = latent.Get("samples")
		}
		if rel := relative(values(t, got), tensorOf(t, "modern/vae.safetensors", key)); !(rel <= 2e-5) {
			t.Errorf("%s: relative error %.3g, bound 2e-5", key, rel)
		}
	}
	seen := 0
	for key, c := range cases {
		if c.Tile == 0 {
			continue
		}
		seen++
		inputs := map[string]any{"vae": vae(c.Model), "tile_size": c.Tile, "overlap": c.Overlap}
		if c.Node == "VAEEncodeTiled" {
			inputs["pixels"] = formula(key, 1, 0.5, c.Input...)
		} else {
			inputs["samples"] = latentValue(formula(key, golden.InputScale, 0, c.Input...))
		}
		compare(key, exec(t, runner, c.Node, inputs))
	}
	if seen == 0 {
		t.Error("no cases")
	}
	latent := latentValue(formula("wanvae-a/tiled", golden.InputScale, 0, 1, 16, 1, 12, 16))
	compare("wanvae-a/decode_tiled", exec(t, runner, "VAEDecodeTiled", map[string]any{
		"samples": latent, "vae": vae("wanvae-a"), "tile_size": 64, "overlap": 16,
	}))
	for _, batch := range []int{2, 5} { // the first picture, and four as one frame
		pixels := formula("wanvae-a/image/pair", 1, 0.5, batch, 16, 24, 3)
		var whole *array.Tensor
		for _, class := range []string{"VAEEncode", "VAEEncodeTiled"} {
			inputs := map[string]any{"pixels": pixels, "vae": vae("wanvae-a")}
			if class == "VAEEncodeTiled" {
				inputs["tile_size"] = 512
			}
			if batch == 2 {
				compare("wanvae-a/encode/pair", exec(t, runner, class, inputs))
				continue
			}
			l, _ := exec(t, runner, class, inputs).(*pyjson.Object).At("samples").(*array.Tensor)
			if l == nil || !slices.Equal(l.Shape, []int{1, 16, 2, 2, 3}) {
				t.Fatalf("%s: %d pictures became %+v, want a video of two frames", class, batch, l)
			}
			if whole == nil {
				whole = l
			} else if !bytes.Equal(whole.Data, l.Data) {
				t.Error("a clip in one tile is another than the whole")
			}
		}
	}
	for _, c := range []struct{ size, overlap int }{{64, 64}, {64, 100}} {
		_, err := runner.Exec(context.Background(), graph.ExecRequest{Class: "VAEEncodeTiled", Inputs: map[string]any{
			"pixels": formula("x", 1, 0.5, 5, 72, 72, 3), "vae": vae("wanvae-a"), "tile_size": c.size, "overlap": c.overlap,
		}}, nil)
		if f := fault.From(err); err == nil || f.Field != "overlap" && f.Field != "tile_size" {
			t.Errorf("tiles of %d with overlap %d: %v", c.size, c.overlap, err)
		}
	}
}
