package value

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/models/tokenizer"
	"patchbay/node/files"
)

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
	s := NewStore(nil, ComputeF32, files.Roots{Models: []string{root}}, 1<<20)
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
