package classes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
)

// videoRunner returns a runner whose models folder has the autoencoders of MiniMax-H3 and of Wan 2.1.
func videoRunner(t *testing.T) *graph.Runner {
	t.Helper()
	root := t.TempDir()
	for _, model := range []string{"h3vae-a", "h3audio-a", "wan21vae-a"} {
		writeGoldenModel(t, model, "", filepath.Join(root, "vae", model+".safetensors"))
	}
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	t.Cleanup(runner.Close)
	return runner
}

// TestMosaicNodes compares the nodes that encode and decode with ComfyUI's for MiniMax-H3's video autoencoder, which is
// always in tiles: those in tiles of a size do the same. Ranks that share the tiles give the bits of one.
func TestMosaicNodes(t *testing.T) {
	runner := videoRunner(t)
	vae := exec(t, runner, "VAELoader", map[string]any{"vae_name": "h3vae-a.safetensors"})
	run := func(class, plan string, inputs map[string]any) any {
		t.Helper()
		inputs["vae"] = vae
		out, err := runner.Exec(context.Background(), graph.ExecRequest{Class: class, Inputs: inputs, Plan: plan}, nil)
		if err != nil {
			t.Fatalf("%s: %v", class, err)
		}
		return out.Outputs[0]
	}
	for _, n := range [][3]int{{1, 2, 3}, {2, 2, 3}, {2, 18, 3}} {
		key := fmt.Sprintf("h3vae-a/decode/%dx%dx%d", n[0], n[1], n[2])
		latent := latentValue(formula(strings.Replace(key, "decode", "latent", 1), golden.InputScale, 0, 1, 24, n[0], n[1],
			n[2]))
		var first []float32
		for _, class := range []string{"VAEDecode", "VAEDecodeTiled"} {
			for _, plan := range []string{"", "ulysses=2"} {
				inputs := map[string]any{"samples": latent}
				if class == "VAEDecodeTiled" {
					inputs["tile_size"] = 64
				}
				im := run(class, plan, inputs).(*array.Tensor)
				got := values(t, im)
				if first == nil {
					first = got
				} else if !slices.Equal(got, first) {
					t.Errorf("%s by %s on plan %q differs from VAEDecode on one rank", key, class, plan)
				}
				if frame := len(got) / im.Shape[0]; n[1] > 16 { // the first and the last are recorded
					got = append(slices.Clone(got[:frame]), got[len(got)-frame:]...)
				}
				if rel := relative(got, tensorOf(t, "h3/vae.safetensors", key+"#image")); !(rel <= 2e-5) {
					t.Errorf("%s: relative error %.3g, bound 2e-5", key, rel)
				}
			}
		}
	}
	wide := latentValue(formula("wide", golden.InputScale, 0, 1, 24, 1, 2, 30)) // three tiles side by side
	one := values(t, run("VAEDecode", "", map[string]any{"samples": wide}))
	for _, plan := range []string{"ulysses=2", "ulysses=4"} {
		if !slices.Equal(one, values(t, run("VAEDecode", plan, map[string]any{"samples": wide}))) {
			t.Errorf("three tiles on plan %s differ from those on one rank", plan)
		}
	}
	for _, n := range [][3]int{{1, 48, 32}, {5, 32, 48}, {9, 32, 32}, {5, 272, 32}} {
		key := fmt.Sprintf("h3vae-a/encode/%dx%dx%d", n[0], n[1], n[2])
		pixels := formula(strings.Replace(key, "encode", "image", 1), 1, 0.5, n[0], n[1], n[2], 3)
		for _, class := range []string{"VAEEncode", "VAEEncodeTiled"} {
			inputs := map[string]any{"pixels": pixels}
			if class == "VAEEncodeTiled" {
				inputs["tile_size"] = 512
			}
			l, _ := run(class, "ulysses=2", inputs).(*pyjson.Object).At("samples").(*array.Tensor)
			if l == nil || len(l.Shape) != 5 {
				t.Fatalf("%s is a latent %+v, want one with frames", key, l)
			}
			if rel := relative(values(t, l), tensorOf(t, "h3/vae.safetensors", key)); !(rel <= 2e-5) {
				t.Errorf("%s: relative error %.3g, bound 2e-5", key, rel)
			}
		}
	}
}

// TestWrongAutoencoders checks that autoencoders of another family or kind are refused by name, with the field and what
// is allowed.
func TestWrongAutoencoders(t *testing.T) {
	runner := videoRunner(t)
	vae := func(model string) any {
		return exec(t, runner, "VAELoader", map[string]any{"vae_name": model + ".safetensors"})
	}
	latent := func(shape ...int) map[string]any { return latentValue(formula("latent", 1, 0, shape...)) }
	pixels := formula("pixels", 1, 0.5, 1, 16, 48, 3)
	for _, c := range []struct {
		class, model string
		inputs       map[string]any
		field, want  string
	}{
		{"VAEDecode", "h3vae-a", map[string]any{"samples": latent(1, 16, 2, 2, 3)}, "vae", "of 24 channels, got 16"},
		{"VAEDecode", "wan21vae-a", map[string]any{"samples": latent(1, 24, 2, 2, 3)}, "vae", "of 16 channels, got 24"},
		{"VAEEncode", "h3vae-a", map[string]any{"pixels": pixels}, "pixels", "sides of at least 32 pixels"},
	} {
		c.inputs["vae"] = vae(c.model)
		_, err := runner.Exec(context.Background(), graph.ExecRequest{Class: c.class, Inputs: c.inputs}, nil)
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != c.field || !strings.Contains(f.Text, c.want) {
			t.Errorf("%s with %s: got %#v, want %q of field %s", c.class, c.model, err, c.want, c.field)
		}
	}
}
