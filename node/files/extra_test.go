package files

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/tests/scratch"
)

// TestExtraModelPaths reads a file like ComfyUI's extra_model_paths.yaml.example.
func TestExtraModelPaths(t *testing.T) {
	tree, other := t.TempDir(), t.TempDir()
	t.Setenv("EXTRA_DISK", other)
	text := `#Rename this to extra_model_paths.yaml and ComfyUI will load it
#config for a1111 ui
a111:
    base_path: path/to/webui/

    checkpoints: models/Stable-diffusion   # one line
    vae: "models/VAE"
    loras: |
         models/Lora
         models/LyCORIS
    upscale_models: |
                  models/ESRGAN

disk:
    base_path: $EXTRA_DISK
    is_default: true
    unet: |
        models/unet
        models/diffusion_models
    clip: /abs/clip
#  vae: not/this/one
`
	if err := os.WriteFile(filepath.Join(tree, ExtraFile), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	extra, err := ReadExtra(tree)
	if err != nil {
		t.Fatal(err)
	}
	under := func(dir string, names ...string) (out []string) {
		for _, n := range names {
			out = append(out, filepath.Join(dir, n))
		}
		return out
	}
	webui := filepath.Join(tree, "path/to/webui/models")
	for _, c := range []struct {
		got, want []string
	}{
		{extra.Then[KindCheckpoint], under(webui, "Stable-diffusion")},
		{extra.Then[KindVAE], under(webui, "VAE")},
		{extra.Then[KindLora], under(webui, "Lora", "LyCORIS")},
		{extra.First[KindText], []string{"/abs/clip"}},
		{extra.First[KindDiffusion], under(other, "models/diffusion_models", "models/unet")},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
	scratch.Touch(t, filepath.Join(webui, "Lora/mine.safetensors"))
	scratch.Touch(t, filepath.Join(other, "models/unet/flux.safetensors"))
	r := Roots{Models: []string{filepath.Join(tree, "models")}, Extra: extra, StrictLinks: true}
	if got := r.List(KindLora); !slices.Equal(got, []string{"mine.safetensors"}) {
		t.Errorf("loras lists %v", got)
	}
	if p, err := r.Resolve(KindDiffusion, "unet_name", "flux.safetensors"); err != nil || !strings.HasPrefix(p, other) {
		t.Errorf("flux.safetensors is %q, %v", p, err)
	}
	if extra, err := ReadExtra(t.TempDir()); err != nil || len(extra.First)+len(extra.Then) > 0 {
		t.Errorf("a tree without the file: %v, %v", extra, err)
	}
	for text, says := range map[string]string{
		"vae: models/vae\n": "line 1: vae is no section", "a:\n  - x\n": "line 2", "a:\n  just words\n": "line 2",
		"[1, 2]\n": "line 1", "a:\n  vae: [x]\n": "line 2: vae is no text", "a:\n  vae:\n": "line 2: vae is no text",
		"a: {vae: 7}": "line 1: vae is no text", "a: &a {<<: *a}": "no section", "a: *b": "anchor", "a: {": "line",
	} {
		if err := os.WriteFile(filepath.Join(tree, ExtraFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadExtra(tree); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want an error that says %q", text, err, says)
		}
	}
}

// TestExtraModelPathsInAnyYAML checks flow mappings, anchors, merged sections and folded texts. The folders are those
// that load_extra_path_config of 0.33.0 makes of the text, but for "both", where releases of PyYAML differ.
func TestExtraModelPathsInAnyYAML(t *testing.T) {
	tree := t.TempDir()
	text := `%YAML 1.1
---
common: &common {base_path: &base /srv/models, loras: "loras\nmore loras", vae: v}
empty:
again:
    <<: *common
    vae: >-
      one
      folder
    checkpoints: *base
? flow
: {is_default: Yes, base_path: *base, vae: 'it''s', loras: /abs, loras: last}
quoted: {is_default: "false", loras: a}
never: {is_default: Off, base_path: "", loras: b}
both: {<<: [{loras: first, base_path: /x}, {loras: second, vae: y}]}
block:
  base_path: rel
  controlnet: |
    nets
    more/nets # no comment

  clip_vision: plain words # a comment
`
	if err := os.WriteFile(filepath.Join(tree, ExtraFile), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	extra, err := ReadExtra(tree)
	if err != nil {
		t.Fatal(err)
	}
	in := func(dir string) string { return filepath.Join(tree, dir) }
	want := Extra{
		First: map[string][]string{
			"loras": {in("a"), "/srv/models/last"}, // each before those so far
			"vae":   {"/srv/models/it's"},
		},
		Then: map[string][]string{
			"loras": {
				"/srv/models/loras", "/srv/models/more loras", "/srv/models/loras", "/srv/models/more loras", in("b"),
				"/x/first",
			},
			"vae":         {"/srv/models/v", "/srv/models/one folder", "/x/y"},
			"checkpoints": {"/srv/models"}, "clip_vision": {in("rel/plain words")},
			"controlnet": {in("rel/nets"), in("rel/more/nets # no comment")},
		},
	}
	if !reflect.DeepEqual(extra, want) {
		t.Errorf("got %v\nwant %v", extra, want)
	}
}
