package files

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"patchbay/fault"
	"patchbay/tests/scratch"
)

// TestModelsMayBeLinks checks that models folders may have links to files and folders, as the cache of Hugging Face
// makes them. Only links owned by root or by the user of the process are followed, and images keep the strict rule
// that no link may lead out of the folder.
func TestModelsMayBeLinks(t *testing.T) {
	base, cache := t.TempDir(), t.TempDir()
	blob := filepath.Join(cache, "blobs/abc")
	scratch.Touch(t, blob)
	scratch.Touch(t, filepath.Join(cache, "disk/vae2/ae.safetensors"))
	scratch.Touch(t, filepath.Join(base, "vae/own.safetensors"))
	scratch.Touch(t, filepath.Join(base, "input/own.png"))
	link := func(target, name string) string {
		t.Helper()
		name = filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	snapshot := filepath.Join(cache, "snapshots/1/flux.safetensors")
	if err := os.MkdirAll(filepath.Dir(snapshot), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../blobs/abc", snapshot); err != nil {
		t.Fatal(err)
	}
	link(snapshot, "vae/flux.safetensors") // a link to a link to a file whose name has no extension
	link(filepath.Join(cache, "disk/vae2"), "vae/shared")
	if err := os.Symlink(blob, filepath.Join(cache, "between")); err != nil {
		t.Fatal(err)
	}
	link(filepath.Join(cache, "between"), "vae/second.safetensors") // another user owns the second link of its chain
	foreign := link(blob, "vae/foreign.safetensors")
	link(filepath.Join(cache, "gone"), "vae/broken.safetensors")
	link("loop.safetensors", "vae/loop.safetensors")
	link(blob, "input/out.png")
	names := []string{"flux.safetensors", "own.safetensors", "shared/ae.safetensors"}
	if os.Geteuid() == 0 {
		for _, name := range []string{foreign, filepath.Join(cache, "between")} {
			if err := os.Lchown(name, 4242, 4242); err != nil {
				t.Fatal(err)
			}
		}
	} else {
		t.Log("NOT RUN: Roots.List with links of other users, which only root can make; ownLinks is asked instead")
		names = append(names, "foreign.safetensors", "second.safetensors")
		slices.Sort(names)
	}
	r := Roots{Models: []string{base}, Input: filepath.Join(base, "input")}
	if got := r.List(KindVAE); !slices.Equal(got, names) {
		t.Errorf("vae lists %v, want %v", got, names)
	}
	for _, name := range names {
		if _, err := r.Resolve(KindVAE, "vae_name", name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, code := range map[string]string{
		"shared/../../vae2/ae.safetensors": fault.FileOutsideRoot, "shared/../own.safetensors": "",
		"../vae/own.safetensors": fault.FileOutsideRoot, "broken.safetensors": fault.FileMissing,
		"loop.safetensors": fault.FileMissing,
	} {
		_, err := r.Resolve(KindVAE, "vae_name", name)
		if code == "" && err != nil || code != "" && (err == nil || fault.From(err).Code != code) {
			t.Errorf("%s: %v, want %q", name, err, code)
		}
	}
	stranger := uint32(os.Geteuid()) + 1
	if os.Geteuid() == 0 {
		stranger = 4343
	}
	if trustedSymlinks(base, []string{"vae", "foreign.safetensors"}, stranger) {
		t.Error("a link that belongs neither to root nor to the user was trusted")
	}
	if _, err := r.Picture("image", "out.png"); err == nil || fault.From(err).Code != fault.FileOutsideRoot {
		t.Errorf("a link out of the input folder: %v, want %s", err, fault.FileOutsideRoot)
	}
	if got, want := r.List(KindInputImage), []string{"own.png"}; !slices.Equal(got, want) {
		t.Errorf("input lists %v, want %v", got, want)
	}
	r.StrictLinks = true
	if got, want := r.List(KindVAE), []string{"own.safetensors"}; !slices.Equal(got, want) {
		t.Errorf("with strict links vae lists %v, want %v", got, want)
	}
}
