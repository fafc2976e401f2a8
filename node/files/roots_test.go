package files

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/tests/scratch"
)

func TestRootsResolve(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	scratch.Touch(t, filepath.Join(outside, "secret.safetensors"))
	scratch.Touch(t, filepath.Join(base, "vae/ae.safetensors"))
	scratch.Touch(t, filepath.Join(base, "clip/sub/l.safetensors"))
	scratch.Touch(t, filepath.Join(base, "text_encoders/t5.sft"))
	for link, target := range map[string]string{
		"vae/out.safetensors": filepath.Join(outside, "secret.safetensors"),
		"vae/folder":          outside, "vae/in.safetensors": filepath.Join(base, "text_encoders/t5.sft"),
	} {
		if err := os.Symlink(target, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	r := Roots{Models: []string{base}, StrictLinks: true}
	if got, want := r.List(KindVAE), []string{"ae.safetensors", "in.safetensors"}; !slices.Equal(got, want) {
		t.Errorf("vae lists %v, want %v: links that leave the roots are left out", got, want)
	}
	if got, want := r.List(KindText), []string{"sub/l.safetensors", "t5.sft"}; !slices.Equal(got, want) {
		t.Errorf("text encoders list %v, want %v", got, want)
	}
	if p, err := r.Resolve(KindText, "clip_name", "sub/l.safetensors"); err != nil ||
		!strings.HasSuffix(p, "clip/sub/l.safetensors") {
		t.Errorf("sub/l.safetensors is %q, %v", p, err)
	}
	for name, code := range map[string]string{
		"../text_encoders/t5.sft":                 fault.FileOutsideRoot,
		filepath.Join(base, "vae/ae.safetensors"): fault.FileOutsideRoot, "out.safetensors": fault.FileOutsideRoot,
		"folder/secret.safetensors": fault.FileOutsideRoot, "none.safetensors": fault.FileMissing,
		"folder": fault.FileMissing, "": fault.FileOutsideRoot,
	} {
		_, err := r.Resolve(KindVAE, "vae_name", name)
		if err == nil {
			t.Errorf("%q was resolved", name)
			continue
		}
		if f := fault.From(err); f.Code != code || f.Field != "vae_name" || !strings.Contains(f.Text, "ae.safetensors") {
			t.Errorf("%q: code %s, field %s, %q; want code %s and the allowed names", name, f.Code, f.Field, f.Text, code)
		}
	}
}

func TestRootsPicture(t *testing.T) {
	base := t.TempDir()
	r := Roots{
		Input: filepath.Join(base, "input"), Output: filepath.Join(base, "output"),
		Temp: filepath.Join(base, "temp"),
	}
	for _, f := range []string{"input/a.png", "input/sub/b.png", "output/c.png", "temp/d.png", "secret.png"} {
		scratch.Touch(t, filepath.Join(base, f))
	}
	for name, want := range map[string]string{
		"a.png": "input/a.png", "sub/b.png": "input/sub/b.png",
		"c.png [output]": "output/c.png", "d.png[temp]": "temp/d.png", "a.png [input]": "input/a.png",
	} {
		if p, err := r.Picture("image", name); err != nil || p != filepath.Join(base, want) {
			t.Errorf("%q is %q, %v, want %s", name, p, err, want)
		}
	}
	for _, name := range []string{
		"", ".", "..", "../secret.png", "../secret.png [output]", "/etc/passwd",
		"sub", "none.png",
	} {
		if p, err := r.Picture("image", name); err == nil {
			t.Errorf("%q was resolved to %s", name, p)
		}
	}
}
