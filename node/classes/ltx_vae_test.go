package classes

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
)

// chainRunner returns a runner whose models folder has autoencoders of LTX-2's kind: a alone and within a checkpoint,
// and a without its metadata.
func chainRunner(t *testing.T) *graph.Runner {
	t.Helper()
	root := t.TempDir()
	writeGoldenModel(t, "ltxvae-a", "", filepath.Join(root, "vae", "a.safetensors"))
	writeGoldenModel(t, "ltxvae-a", "vae.", filepath.Join(root, "vae", "within.safetensors"))
	set, _, err := goldenweights.Set("ltxvae-a")
	check(t, err)
	writeModel(t, filepath.Join(root, "vae", "bare.safetensors"), set, "{}", func(n string) string { return n })
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	t.Cleanup(runner.Close)
	return runner
}

// TestChainNodes compares the nodes that encode and decode with ComfyUI's for LTX-2's autoencoder, on one rank and in
// bands, and checks what is refused by name.
func TestChainNodes(t *testing.T) {
	runner := chainRunner(t)
	run := func(class, plan, model string, inputs map[string]any) (any, error) {
		t.Helper()
		inputs["vae"] = exec(t, runner, "VAELoader", map[string]any{"vae_name": model + ".safetensors"})
		out, err := runner.Exec(context.Background(), graph.ExecRequest{Class: class, Inputs: inputs, Plan: plan}, nil)
		if err != nil {
			return nil, err
		}
		return out.Outputs[0], nil
	}
	latent := func(shape ...int) map[string]any { return latentValue(formula("latent", 1, 0, shape...)) }
	near := func(key string, got []float32, every int) {
		t.Helper()
		var stored []float32
		for i := 0; i < len(got); i += every {
			stored = append(stored, got[i])
		}
		if rel := relative(stored, tensorOf(t, "ltx/vae.safetensors", key)); !(rel <= 2e-5) {
			t.Errorf("%s: relative error %.3g, bound 2e-5", key, rel)
		}
	}
	for _, c := range []struct{ plan, model string }{{"", "a"}, {"ulysses=2", "within"}} {
		tiled := latentValue(formula("ltxvae-a/latent/3x6x5", golden.InputScale, 0, 1, 128, 3, 6, 5))
		im, err := run("VAEDecodeTiled", c.plan, c.model, map[string]any{
			"samples": tiled, "tile_size": 128, "overlap": 32, "temporal_size": 16, "temporal_overlap": 8,
		})
		check(t, err)
		near("ltxvae-a/decode_tiled/3x6x5", values(t, im.(*array.Tensor)), 101)
		im, err = run("VAEDecode", c.plan, c.model, map[string]any{
			"samples": latentValue(formula("ltxvae-a/latent/1x2x2", golden.InputScale, 0, 1, 128, 1, 2, 2)),
		})
		check(t, err)
		want := tensorOf(t, "ltx/vae.safetensors", "ltxvae-a/decode/1x2x2#raw")
		for i, f := range want {
			want[i] = min(max(f/2+0.5, 0), 1)
		}
		if rel := relative(values(t, im.(*array.Tensor)), want); !(rel <= 2e-5) {
			t.Errorf("one picture on plan %q: relative error %.3g", c.plan, rel)
		}
		l, err := run("VAEEncode", c.plan, c.model, map[string]any{
			"pixels": formula("ltxvae-a/image/31x32x64", 1, 0.5, 31, 32, 64, 3),
		})
		check(t, err)
		near("ltxvae-a/encode/31x32x64", values(t, l.(*pyjson.Object).At("samples").(*array.Tensor)), 1)
	}
	for _, c := range []struct {
		class, model string
		inputs       map[string]any
		field, want  string
	}{
		{"VAEDecode", "a", map[string]any{"samples": latent(1, 16, 2, 2, 3)}, "vae", "of 128 channels, got 16"},
		{"VAEDecode", "a", map[string]any{"samples": latent(1, 128, 1, 1, 2)}, "samples", "sides of at least 2, 64 pixels"},
		{"VAEDecodeTiled", "a", map[string]any{
			"samples": latent(1, 128, 1, 3, 2), "tile_size": 64, "overlap": 0,
		}, "tile_size", "leaves a tile of 32 pixels"},
		{"VAEDecode", "bare", map[string]any{"samples": latent(1, 128, 1, 2, 2)}, "vae", "no config with a member vae"},
	} {
		_, err := run(c.class, "", c.model, c.inputs)
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != c.field || !strings.Contains(f.Text, c.want) {
			t.Errorf("%s with %s: got %#v, want %q of field %s", c.class, c.model, err, c.want, c.field)
		}
	}
}
