package classes

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// TestLTXLatentsAreEnlarged compares what LTXVLatentUpsampler makes of the second latent of a batch with
// ComfyUI's, and checks what is refused by name.
func TestLTXLatentsAreEnlarged(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"ltxup-ratio1.5", "ltxup-time"} {
		writeGoldenModel(t, name, "", filepath.Join(root, "latent_upscale_models", name+".safetensors"))
	}
	writeGoldenModel(t, "ltxvae-a", "vae.", filepath.Join(root, "vae", "ltx.safetensors"))
	writeGolden(t, "vae-kl", filepath.Join(root, "vae", "kl.safetensors"))
	writeGolden(t, "vae-kl", filepath.Join(root, "latent_upscale_models", "kl.safetensors"))
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	run := func(model, autoencoder string, latent map[string]any) (any, error) {
		out, err := runner.Exec(t.Context(), graph.ExecRequest{Class: "LTXVLatentUpsampler", Inputs: map[string]any{
			"samples":       latent,
			"upscale_model": exec(t, runner, "LatentUpscaleModelLoader", map[string]any{"model_name": model + ".safetensors"}),
			"vae":           exec(t, runner, "VAELoader", map[string]any{"vae_name": autoencoder + ".safetensors"}),
		}}, nil)
		if err != nil {
			return nil, err
		}
		return out.Outputs[0], nil
	}
	one := formula("ltxup-ratio1.5/latent/2x3x4", 2*math.Sqrt(3), 0, 1, 128, 2, 3, 4)
	two := slices.Concat(values(t, formula("another", 1, 0, 1, 128, 2, 3, 4)), values(t, one))
	got, err := run("ltxup-ratio1.5", "ltx", latentValue(array.New(two, 2, 128, 2, 3, 4), "noise_mask",
		formula("mask", 1, 0, 1, 3, 4)))
	check(t, err)
	samples := got.(*pyjson.Object).At("samples").(*array.Tensor)
	if shape := samples.Shape; len(shape) != 5 || shape[0] != 2 || shape[2] != 2 || shape[3] != 5 || shape[4] != 6 {
		t.Fatalf("a result of shape %v, want [2 128 2 5 6]", shape)
	}
	if got.(*pyjson.Object).At("noise_mask") != nil {
		t.Error("the result has a mask")
	}
	want, all := tensorOf(t, "ltx/upscale.safetensors", "ltxup-ratio1.5/2x3x4"), values(t, samples)
	for b, bound := range []float64{math.Inf(1), 2e-5} {
		var stored []float32
		for i, v := range all[b*len(all)/2 : (b+1)*len(all)/2] {
			if i%5 == 0 {
				stored = append(stored, v)
			}
		}
		if rel := relative(stored, want); !(rel <= bound) || b == 0 && !(rel > 0.1) {
			t.Errorf("item %d: relative error %.3g, bound %.3g, and the first is another one", b, rel, bound)
		}
	}
	for _, c := range []struct {
		model, autoencoder string
		shape              []int
		field, want        string
	}{
		{"ltxup-time", "ltx", []int{1, 128, 2, 3}, "samples", "the latent of a picture"},
		{"ltxup-time", "ltx", []int{1, 64, 2, 2, 3}, "samples", "64 channels, upscale_model reads 128"},
		{"ltxup-time", "kl", []int{1, 128, 2, 2, 3}, "samples", "vae makes"},
	} {
		_, err := run(c.model, c.autoencoder, latentValue(formula("latent", 1, 0, c.shape...)))
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != c.field || !strings.Contains(f.Text, c.want) {
			t.Errorf("%s with %s and %v: got %v, want %q of field %s", c.model, c.autoencoder, c.shape, err, c.want, c.field)
		}
	}
	_, err = runner.Exec(t.Context(), graph.ExecRequest{Class: "LatentUpscaleModelLoader", Inputs: map[string]any{
		"model_name": "kl.safetensors",
	}}, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.WrongFamily || !strings.Contains(f.Text, "no upscale model of latents") {
		t.Errorf("an autoencoder as an upscale model: got %v", err)
	}
}
