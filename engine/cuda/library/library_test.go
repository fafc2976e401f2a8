package library

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// tree makes empty files below dir and returns the last one's directory.
func tree(t *testing.T, dir string, names ...string) string {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestCandidates checks that libraries are found in wheels of CUDA 12 and 13, nearest place first, and that libraries
// too new for the driver are left out.
func TestCandidates(t *testing.T) {
	const packages = "lib/python3.12/site-packages/nvidia/"
	named := tree(t, t.TempDir(), "libcublasLt.so.12")
	comfy := tree(t, t.TempDir(), ".venv/"+packages+"cu13/lib/libcublasLt.so.13")
	env := tree(t, filepath.Join(t.TempDir(), "a[b]*"), packages+"cublas/lib/libcublasLt.so.12")
	conda := tree(t, t.TempDir(), "lib/libcublasLt.so.12")
	t.Setenv("VIRTUAL_ENV", env)
	t.Setenv("CONDA_PREFIX", conda)
	t.Setenv("CUDA_HOME", "")
	s := Search{Folders: "/nowhere:" + named, ComfyUI: comfy}
	inComfy := filepath.Join(comfy, ".venv", packages, "cu13/lib/libcublasLt.so.13")
	rest := []string{
		filepath.Join(env, packages, "cublas/lib/libcublasLt.so.12"), filepath.Join(conda, "lib/libcublasLt.so.12"),
	}
	at12 := append([]string{filepath.Join(named, "libcublasLt.so.12")}, rest...)
	at13 := append([]string{at12[0], inComfy}, rest...)
	for _, c := range []struct {
		driver int
		want   []string
	}{
		{13000, append(at13, "libcublasLt.so.13", "libcublasLt.so.12")},
		{12040, append(at12, "libcublasLt.so.12")},
		{11080, nil},
	} {
		got := s.Candidates(CUBLASLt(), c.driver)
		if len(got) < len(c.want) || !slices.Equal(got[:len(c.want)], c.want) { // a toolkit of this machine may follow
			t.Errorf("driver %d: %q, want %q first", c.driver, got, c.want)
		}
	}
	looked := s.Looked(CUBLASLt())
	for _, want := range []string{named, filepath.Dir(inComfy), "the loader's path", "/usr/local/cuda/lib64"} {
		if !slices.Contains(looked, want) {
			t.Errorf("looked in %q, want %s among them", looked, want)
		}
	}
	off := Search{Folders: Off, ComfyUI: comfy}
	if off.Candidates(CUBLASLt(), 13000) != nil || off.Looked(CUBLASLt()) != nil {
		t.Error("off looks somewhere")
	}
}
