// Package scratch writes the small files that tests need. Only tests import it.
package scratch

import (
	"os"
	"path/filepath"
	"testing"
)

// Touch makes an empty file and its folders.
func Touch(t testing.TB, path string) {
	t.Helper()
	Write(t, path, nil)
}

// Write makes a file with the given content, and its folders.
func Write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Server makes the folders of the ComfyUI server that tests/golden/server was recorded from, with empty files under the
// same names.
func Server(t testing.TB) (models, input, output, temp string) {
	t.Helper()
	base := t.TempDir()
	for _, f := range []string{
		"models/diffusion_models/flux-tiny.safetensors", "models/diffusion_models/sd3-tiny.safetensors",
		"models/diffusion_models/sub/flux-other.safetensors", "models/text_encoders/clip_g.safetensors",
		"models/text_encoders/clip_l.safetensors", "models/text_encoders/t5xxl.safetensors",
		"models/vae/ae.safetensors", "input/example.png",
	} {
		Touch(t, filepath.Join(base, f))
	}
	in := func(name string) string { return filepath.Join(base, name) }
	return in("models"), in("input"), in("output"), in("temp")
}
