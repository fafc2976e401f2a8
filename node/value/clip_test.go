package value

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/tokenizer"
	"patchbay/node/files"
)

// TestQwenEncoders checks which family reads the Qwens under a type of the loader: Qwen3-VL-8B is Qwen-Image-2.1's
// under every type but FLUX.2's.
func TestQwenEncoders(t *testing.T) {
	deep := "visual.deepstack_merger_list.0.norm.weight"
	for _, c := range []struct {
		width      int
		with, typ  string
		kind, want string
	}{
		{4096, deep, "qwen_image", "qwen3vl_8b", "qwen_image21"},
		{4096, deep, "stable_diffusion", "qwen3vl_8b", "qwen_image21"},
		{4096, deep, "flux2", "qwen3vl_8b", "flux2"},
		{4096, "", "qwen_image", "qwen3_8b", "flux2"},
		{2560, deep, "krea2", "qwen3vl_4b", "krea2"},
	} {
		var list []safetensors.Tensor
		add := func(name string, shape ...int) {
			n := 2
			for _, s := range shape {
				n *= s
			}
			list = append(list, safetensors.Tensor{
				Name: name, DType: engine.BF16, Shape: shape, Data: datafile.Of(make([]byte, n)),
			})
		}
		add("model.embed_tokens.weight", 2, c.width)
		add("model.layers.0.self_attn.q_norm.weight", 128)
		if c.with != "" {
			add(c.with, 4)
		}
		path := filepath.Join(t.TempDir(), "qwen.safetensors")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err = errors.Join(safetensors.Write(f, nil, list), f.Close()); err != nil {
			t.Fatal(err)
		}
		clip := &Clip{Type: c.typ}
		if err := files.ReadHeader(files.KindText, path, false, clip.Add); err != nil {
			t.Fatal(err)
		}
		if err := clip.Check("CLIPLoader", "type"); err != nil || clip.parts[0].kind != c.kind || clip.Type != c.want {
			t.Errorf("width %d, type %s: %s read as %s, %v; want %s as %s", c.width, c.typ, clip.parts[0].kind, clip.Type, err,
				c.kind, c.want)
		}
	}
}

// TestCLIPGAlone checks which family reads CLIP-G alone under a type of the loader: SD3 its own, and the refiner of
// SDXL that of every type without another.
func TestCLIPGAlone(t *testing.T) {
	for typ, want := range map[string]string{
		"stable_diffusion": "sdxl_refiner", "flux": "sdxl_refiner", "sd3": "sd3", "sdxl": "",
	} {
		clip := &Clip{Type: typ, parts: []encoder{{kind: "clip_g"}}}
		if err := clip.Check("CLIPLoader", "type"); (err == nil) != (want != "") || err == nil && clip.Type != want {
			t.Errorf("type %s: read as %s, %v; want %q", typ, clip.Type, err, want)
		}
	}
}

// TestSD3Prompts checks which encoders CLIPTextEncodeSD3 uses, and that both CLIPs get the same number of chunks.
func TestSD3Prompts(t *testing.T) {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root, clip := filepath.Join("..", "..", "examples", "demo"), &Clip{Type: "sd3"}
	path := filepath.Join(root, "text_encoders", "demo_clip.safetensors")
	check(files.ReadHeader(files.KindText, path, false, clip.Add))
	clip.parts = append(clip.parts, clip.parts[0])
	clip.parts[1].kind = "clip_g"
	s := NewStore(nil, ComputeF32, files.Roots{Models: []string{root}})
	long := strings.Repeat("a red heart and a blue star ", 30)
	got, _, err := clip.prompts(s, func(key string) (string, bool) { return map[string]string{"clip_l": long}[key], true })
	check(err)
	l, g := got["clip_l"].Chunks, got["clip_g"].Chunks
	if len(l) < 2 || len(g) != len(l) {
		t.Fatalf("%d chunks for CLIP-L, %d for CLIP-G: want the same number, at least 2", len(l), len(g))
	}
	if !slices.EqualFunc(g[0], g[1], func(a, b tokenizer.Token) bool { return a.ID == b.ID }) {
		t.Errorf("the chunks behind an empty prompt differ from it: %v, %v", g[0], g[1])
	}
	got, _, err = clip.prompts(s, func(key string) (string, bool) { return "x", key == "clip_g" })
	check(err)
	if _, asked := got["clip_l"]; asked || len(got) != 1 {
		t.Errorf("asked %d encoders, want clip_g alone", len(got))
	}
}
