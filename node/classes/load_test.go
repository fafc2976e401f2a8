package classes

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/tests/scratch"
)

// copyFile copies a demo file to another path.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "examples", "demo", from))
	if err != nil {
		t.Fatal(err)
	}
	scratch.Write(t, to, data)
}

// fullCheckpoint writes all parts of the demo into one file, with the prefixes of full checkpoints.
func fullCheckpoint(t *testing.T, path string) {
	t.Helper()
	meta := map[string]string{}
	var entries []safetensors.Tensor
	for _, part := range []struct{ file, prefix, key string }{
		{"diffusion_models/demo_flux.safetensors", "model.diffusion_model.", "config"},
		{"text_encoders/demo_clip.safetensors", "text_encoders.clip_l.transformer.", "clip_l.config"},
		{"text_encoders/demo_t5.safetensors", "text_encoders.t5xxl.transformer.", "t5.config"},
		{"vae/demo_ae.safetensors", "vae.", "vae.config"},
	} {
		f, err := safetensors.Open(filepath.Join("..", "..", "examples", "demo", part.file))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		meta[part.key] = f.Metadata()["config"]
		for _, name := range f.Names() {
			e, _ := f.Entry(name)
			e.Name = part.prefix + name
			entries = append(entries, e)
		}
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, meta, entries); err != nil {
		t.Fatal(err)
	}
	scratch.Write(t, path, b.Bytes())
}

func TestCheckpointLoaderDrawsTheSamePicture(t *testing.T) {
	root := t.TempDir()
	fullCheckpoint(t, filepath.Join(root, "checkpoints/all.safetensors"))
	for _, f := range []string{"clip", "t5"} {
		copyFile(t, "tokenizers/demo_"+f+".tokenizer.json", filepath.Join(root, "tokenizers", f+".tokenizer.json"))
	}
	draw := func(w *graph.Workflow, roots files.Roots) []byte {
		t.Helper()
		runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Roots: roots, Catalogue: All()})
		if err != nil {
			t.Fatal(err)
		}
		defer runner.Close()
		result, err := runner.Run(context.Background(), graph.Job{Workflow: w, NoMetadata: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return result.Outputs[0].Data
	}
	apart := demoWorkflow(t)
	if err := apart.SetInput("3", "steps", 2); err != nil {
		t.Fatal(err)
	}
	text := string(apart.JSON())
	const unet = `"1": {"class_type": "UNETLoader", "inputs": ` +
		`{"unet_name": "demo_flux.safetensors", "weight_dtype": "default"}`
	for old, new := range map[string]string{
		unet:               `"1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "all.safetensors"}`,
		`"clip": ["2", 0]`: `"clip": ["1", 1]`, `"vae": ["4", 0]`: `"vae": ["1", 2]`,
	} {
		text = strings.ReplaceAll(text, old, new)
	}
	whole := draw(graphOf(t, text), files.Roots{Models: []string{root}})
	if !bytes.Equal(whole, draw(apart, demoRoots())) {
		t.Error("the picture of the full checkpoint differs from that of its parts")
	}
}

func TestLoadersRefuseOtherKinds(t *testing.T) {
	root := t.TempDir()
	copyFile(t, "vae/demo_ae.safetensors", filepath.Join(root, "diffusion_models/ae.safetensors"))
	copyFile(t, "vae/demo_ae.safetensors", filepath.Join(root, "text_encoders/ae.safetensors"))
	copyFile(t, "text_encoders/demo_clip.safetensors", filepath.Join(root, "text_encoders/clip.safetensors"))
	copyFile(t, "text_encoders/demo_clip.safetensors", filepath.Join(root, "text_encoders/clip2.safetensors"))
	copyFile(t, "text_encoders/demo_t5.safetensors", filepath.Join(root, "text_encoders/t5.safetensors"))
	copyFile(t, "text_encoders/demo_t5.safetensors", filepath.Join(root, "vae/t5.safetensors"))
	scratch.Write(t, filepath.Join(root, "vae/broken.safetensors"), []byte("\x10\x00\x00\x00\x00\x00\x00\x00{\"a\": "))
	runner, err := graph.NewRunner(graph.Config{Roots: files.Roots{Models: []string{root}}, Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	dual := func(a, b string) map[string]any {
		return map[string]any{"clip_name1": a, "clip_name2": b, "type": "flux"}
	}
	for name, c := range map[string]struct {
		class             string
		inputs            map[string]any
		code, field, says string
	}{
		"vae as model": {
			"UNETLoader",
			map[string]any{"unet_name": "ae.safetensors", "weight_dtype": "default"},
			fault.WrongFamily, "unet_name", "a VAE",
		},
		"vae as clip": {
			"DualCLIPLoader", dual("ae.safetensors", "t5.safetensors"), fault.WrongFamily,
			"clip_name1", "a VAE",
		},
		"clip twice": {
			"DualCLIPLoader", dual("clip.safetensors", "clip2.safetensors"),
			fault.WrongFamily, "type", "clip_l",
		},
		"t5 as vae": {
			"VAELoader",
			map[string]any{"vae_name": "t5.safetensors"},
			fault.WrongFamily, "vae_name", "T5",
		},
		"broken": {
			"VAELoader",
			map[string]any{"vae_name": "broken.safetensors"},
			fault.BadCheckpoint,
			"vae_name", "broken.safetensors",
		},
		"vae as rounded model": {
			"UNETLoader",
			map[string]any{"unet_name": "ae.safetensors", "weight_dtype": "fp8_e5m2"},
			fault.WrongFamily, "unet_name", "a VAE",
		},
		"type not known": {
			"CLIPLoader",
			map[string]any{"clip_name": "t5.safetensors", "type": "mochi"},
			"custom_validation_failed", "type", "pixart",
		},
		"sd1 without l": {
			"CLIPLoader",
			map[string]any{"clip_name": "t5.safetensors", "type": "stable_diffusion"},
			fault.WrongFamily, "type", "clip_l",
		},
		"name not listed": {
			"VAELoader",
			map[string]any{"vae_name": "../vae/t5.safetensors"},
			"value_not_in_list",
			"vae_name", "t5.safetensors",
		},
	} {
		_, err := runner.Exec(context.Background(), graph.ExecRequest{Class: c.class, Inputs: c.inputs}, nil)
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != c.code || f.Field != c.field || !strings.Contains(f.Error(), c.says) {
			t.Errorf("%s: got %#v, want code %s, field %s and the text %q", name, err, c.code, c.field, c.says)
		}
	}
}

func TestMissingTokenizerNamesAllPlaces(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{"clip", "t5"} {
		copyFile(t, "text_encoders/demo_"+f+".safetensors", filepath.Join(root, "text_encoders/demo_"+f+".safetensors"))
	}
	runner, err := graph.NewRunner(graph.Config{
		Roots:     files.Roots{Models: []string{root}, ComfyUI: "/somewhere/ComfyUI"},
		Catalogue: All(),
	})
	if err != nil {
		t.Fatal(err)
	}
	clip := exec(t, runner, "DualCLIPLoader",
		map[string]any{"clip_name1": "demo_clip.safetensors", "clip_name2": "demo_t5.safetensors", "type": "flux"})
	_, err = runner.Exec(context.Background(),
		graph.ExecRequest{Class: "CLIPTextEncode", Inputs: map[string]any{"text": "a", "clip": clip}}, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.TokenizerMissing {
		t.Fatalf("got %v, want tokenizer_missing", err)
	}
	for _, place := range []string{
		"models/tokenizers/demo_clip.tokenizer.json", "models/tokenizers/clip_l", "ComfyUI/comfy/sd1_tokenizer",
	} {
		if !strings.Contains(f.Text, place) {
			t.Errorf("the error does not name %s:\n%s", place, f.Text)
		}
	}
}

// TestOwnTokenizerGoesBeforeTheKinds checks that an encoder's own vocabulary has precedence over a general CLIP
// vocabulary in an earlier folder.
func TestOwnTokenizerGoesBeforeTheKinds(t *testing.T) {
	other := t.TempDir()
	scratch.Write(t, filepath.Join(other, "tokenizers", "clip_l.tokenizer.json"), []byte(`{"not": "this one"}`))
	encode := func(roots ...string) []float32 {
		runner, err := graph.NewRunner(graph.Config{
			Engine: refEngine(t), Roots: files.Roots{Models: roots}, Catalogue: All(),
		})
		check(t, err)
		defer runner.Close()
		clip := exec(t, runner, "CLIPLoader", map[string]any{
			"clip_name": "demo_clip.safetensors", "type": "stable_diffusion",
		})
		c := exec(t, runner, "CLIPTextEncode", map[string]any{"text": "a red heart", "clip": clip})
		return values(t, c.([]any)[0].([]any)[0])
	}
	demo := demoRoots().Models[0]
	if !slices.Equal(encode(other, demo), encode(demo)) {
		t.Error("another folder's tokenizer was taken")
	}
}

// TestTokenizerOfAnotherFile checks that a vocabulary with ids beyond the encoder's rows is the user's error.
func TestTokenizerOfAnotherFile(t *testing.T) {
	root := t.TempDir()
	copyFile(t, "text_encoders/demo_clip.safetensors", filepath.Join(root, "text_encoders", "demo_clip.safetensors"))
	data, err := os.ReadFile(filepath.Join(demoRoots().Models[0], "tokenizers", "demo_clip.tokenizer.json"))
	check(t, err)
	moved := strings.ReplaceAll(string(data), `"heart</w>": 606`, `"heart</w>": 1205`)
	scratch.Write(t, filepath.Join(root, "tokenizers", "demo_clip.tokenizer.json"), []byte(moved))
	runner, err := graph.NewRunner(graph.Config{
		Engine: refEngine(t), Roots: files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	clip := exec(t, runner, "CLIPLoader", map[string]any{
		"clip_name": "demo_clip.safetensors", "type": "stable_diffusion",
	})
	_, err = runner.Exec(t.Context(),
		graph.ExecRequest{Class: "CLIPTextEncode", Inputs: map[string]any{"text": "a red heart", "clip": clip}}, nil)
	if f := fault.From(err); err == nil || f.Code != fault.TokenizerMissing || !strings.Contains(f.Text, "demo_clip") {
		t.Errorf("got %v, want tokenizer_missing", err)
	}
}

func TestWrongVAEIsFoundBeforeSampling(t *testing.T) {
	w := demoWorkflow(t)
	if err := w.SetInput("4", "vae_name", value.PixelSpace); err != nil {
		t.Fatal(err)
	}
	runner, err := graph.NewRunner(graph.Config{Engine: refEngine(t), Roots: demoRoots(), Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	_, err = runner.Run(context.Background(), graph.Job{Workflow: w}, func(e graph.Event) {
		if e.Type == "progress" {
			steps++
		}
	})
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.WrongFamily || f.Node != "8" || f.Class != "VAEDecode" ||
		f.Field != "vae" || steps > 0 {
		t.Errorf("got %#v after %d steps, want wrong_family at vae of node 8 before the first", err, steps)
	}
}

func TestChangedModelFileIsReadAgain(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "vae/ae.safetensors")
	copyFile(t, "vae/demo_ae.safetensors", path)
	runner, err := graph.NewRunner(graph.Config{Catalogue: All(sink()), Roots: files.Roots{Models: []string{root}}})
	if err != nil {
		t.Fatal(err)
	}
	run := func() *graph.Result {
		t.Helper()
		result, err := runner.Run(context.Background(),
			graph.Job{Workflow: graphOf(t, `{"a": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}}, `+
				`"b": {"class_type": "Sink", "inputs": {"value": ["a", 0]}}}`)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	run()
	if again := run(); len(again.Executed) != 0 {
		t.Errorf("an unchanged file: executed %v", again.Executed)
	}
	copyFile(t, "vae/demo_ae.safetensors", path) // same header, later time
	if after := run(); len(after.Executed) != 2 {
		t.Errorf("a changed file: executed %v, want both nodes", after.Executed)
	}
}
