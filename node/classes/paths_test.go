package classes

import (
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/tests/scratch"
)

// TestErrorsHoldNoPaths checks that errors about files tell clients the name, the kind of folder and the allowed names,
// but never the path on the operator's disk. The cause, which goes to the operator's log, keeps the path.
func TestErrorsHoldNoPaths(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, "m", filepath.FromSlash(name)) }
	scratch.Write(t, at("diffusion_models/broken.safetensors"), []byte("not a checkpoint, but long enough for a header"))
	scratch.Write(t, at("vae/cut.safetensors"), []byte{255, 0, 0, 0, 0, 0, 0, 0, '{'})
	scratch.Touch(t, filepath.Join(root, "in", "there.png"))
	copyFile(t, "text_encoders/demo_clip.safetensors", at("text_encoders/nowhere.safetensors"))
	run, err := graph.NewRunner(graph.Config{
		Engine: refEngine(t), Catalogue: All(), Roots: files.Roots{
			Models: []string{filepath.Join(root, "m")},
			Input:  filepath.Join(root, "in"), Output: filepath.Join(root, "out"), Temp: filepath.Join(root, "temp"),
		},
	})
	check(t, err)
	defer run.Close()
	clip := exec(t, run, "CLIPLoader", map[string]any{"clip_name": "nowhere.safetensors", "type": "stable_diffusion"})
	for name, c := range map[string]struct {
		class  string
		inputs map[string]any
		code   string
		says   []string
		cause  bool
	}{
		"broken": {
			"UNETLoader",
			map[string]any{"unet_name": "broken.safetensors", "weight_dtype": "default"},
			fault.BadCheckpoint,
			[]string{"unet_name", "models/diffusion_models/broken.safetensors"},
			true,
		},
		"cut": {
			"VAELoader",
			map[string]any{"vae_name": "cut.safetensors"},
			fault.BadCheckpoint,
			[]string{"vae_name", "models/vae/cut.safetensors"},
			true,
		},
		"no tokenizer": {
			"CLIPTextEncode",
			map[string]any{"clip": clip, "text": "a"},
			fault.TokenizerMissing,
			[]string{"nowhere.safetensors", "models/tokenizers/nowhere"},
			true,
		},
	} {
		_, err := run.Exec(t.Context(), graph.ExecRequest{Class: c.class, Inputs: c.inputs}, nil)
		f := fault.From(err)
		if err == nil || f.Code != c.code || strings.Contains(f.Error(), root) {
			t.Errorf("%s: got %v (%s), want %s and no path", name, err, f.Code, c.code)
		}
		for _, s := range c.says {
			if !strings.Contains(f.Error(), s) {
				t.Errorf("%s: %q does not say %q", name, f.Error(), s)
			}
		}
		if c.cause && (f.Cause == nil || !strings.Contains(f.Cause.Error(), root)) {
			t.Errorf("%s: the path is lost for the log: %v", name, f.Cause)
		}
	}
	_, err = run.Load(t.Context(), value.ModelFile{Name: "gone.safetensors"}, "")
	if f := fault.From(err); err == nil || f.Code != fault.FileMissing || strings.Contains(f.Error(), root) ||
		!strings.Contains(f.Error(), "diffusion_models") || !strings.Contains(f.Error(), "broken.safetensors") {
		t.Errorf("load: %v", err)
	}
	roots := run.Roots()
	if _, err := roots.Picture("image", "gone.png"); err == nil || strings.Contains(err.Error(), root) ||
		!strings.Contains(err.Error(), "there.png") {
		t.Errorf("picture: %v", err)
	}
}
