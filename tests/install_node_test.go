package tests

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// TestComfyUIInstallNode checks that the node package is installed into a folder that looks like ComfyUI, over an older
// one, and nowhere else.
func TestComfyUIInstallNode(t *testing.T) {
	t.Parallel()
	program, tree := harness.Build(t), t.TempDir()
	install := func(dir string) (string, bool) {
		out, err := exec.Command(program, "install-node", dir).CombinedOutput()
		return string(out), err == nil
	}
	if out, ok := install(tree); ok || !strings.Contains(out, "no ComfyUI folder") {
		t.Errorf("an empty folder: %s", out)
	}
	if err := os.Mkdir(filepath.Join(tree, "comfy"), 0o755); err != nil {
		t.Fatal(err)
	}
	place := filepath.Join(tree, "custom_nodes", "patchbay")
	if out, ok := install(tree); !ok || !strings.Contains(out, place) {
		t.Fatalf("install: %s", out)
	}
	stale := filepath.Join(place, "stale.py")
	if err := os.WriteFile(stale, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, ok := install(tree); !ok {
		t.Fatalf("install again: %s", out)
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("a file of the older package is left")
	}
	wanted := []string{"README.md", "pyproject.toml"}
	for _, pattern := range []string{"*.py", "client/*.py", "web/*.js", "workflows/*.json"} {
		files, err := filepath.Glob(filepath.Join("../comfyui", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, f := range files {
			rel, _ := filepath.Rel("../comfyui", f)
			wanted = append(wanted, rel)
		}
	}
	for _, name := range wanted {
		a, err := os.ReadFile(filepath.Join("../comfyui", name))
		b, second := os.ReadFile(filepath.Join(place, name))
		if err != nil || second != nil || !bytes.Equal(a, b) {
			t.Errorf("%s was not installed as it is: %v, %v", name, err, second)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(place))
	if err != nil || len(entries) != 1 {
		t.Errorf("custom_nodes has %v, %v; want patchbay alone", entries, err)
	}
	if err := os.Remove(filepath.Join(place, "proxy.py")); err != nil {
		t.Fatal(err)
	}
	if out, ok := install(tree); ok || !strings.Contains(out, "is not this package") {
		t.Errorf("over somebody else's folder: %s", out)
	}
}
