package tests

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/tests/harness"
	"patchbay/tests/scratch"
)

// TestComfyUIInstallNode checks that the node package is installed into a folder that looks like ComfyUI, over an older
// one, and nowhere else.
func TestComfyUIInstallNode(t *testing.T) {
	t.Parallel()
	program, tree := harness.Build(t), t.TempDir()
	install := func(dir string) (string, bool) {
		out, err := harness.Printed(exec.Command(program, "install-node", dir))
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
	sources := map[string]string{} // by the path below place
	for pattern, dir := range map[string]string{
		"../comfyui/*.py": "", "../comfyui/README.md": "", "../comfyui/pyproject.toml": "", "../comfyui/web/*.js": "web",
		"../comfyui/workflows/*.json": "workflows", "../clients/python/patchbay/*.py": "client",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, f := range files {
			sources[filepath.Join(dir, filepath.Base(f))] = f
		}
	}
	for name, source := range sources {
		a, err := os.ReadFile(source)
		b, second := os.ReadFile(filepath.Join(place, name))
		if err != nil || second != nil || !bytes.Equal(a, b) {
			t.Errorf("%s was not installed as it is: %v, %v", name, err, second)
		}
	}
	err := filepath.WalkDir(place, func(path string, d fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(place, path); err == nil && !d.IsDir() && sources[name] == "" {
			t.Errorf("%s was installed, which is not part of the nodes", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
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

// TestComfyUINodesFindTheirClient checks that installed nodes can be imported, and that nodes that were copied from the
// repository, without the client, say what to do. Installed nodes contact no address that only a workflow names.
func TestComfyUINodesFindTheirClient(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("NOT RUN: python3 is not installed")
	}
	program, tree := harness.Build(t), t.TempDir()
	if err := os.Mkdir(filepath.Join(tree, "comfy"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := harness.Printed(exec.Command(program, "install-node", tree)); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	for _, c := range []struct{ dir, name, says string }{
		{filepath.Join(tree, "custom_nodes"), "patchbay", "PatchbayUNETLoader PatchbayCheckpointLoader "},
		{"..", "comfyui", "the folder client is missing or old: `patchbay install-node <ComfyUI>` writes"},
	} {
		out, err := harness.Printed(exec.Command("python3", "comfyui/stands.py", c.dir, c.name))
		if err != nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %v, want %q\n%s", c.name, err, c.says, out)
		}
	}
	for file, text := range map[string]string{"missing.json": "", "picture.json": "\x89PNG", "list.json": "[1]"} {
		path := filepath.Join(tree, file)
		if text != "" {
			scratch.Write(t, path, []byte(text))
		}
		out, err := harness.Printed(exec.Command("python3", filepath.Join(tree, "custom_nodes", "patchbay", "swap.py"), path))
		if harness.ExitCode(t, err) != 2 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), path) {
			t.Errorf("swap of %s: %v, want a line that names the file\n%s", file, err, out)
		}
	}
	out, err := harness.Printed(exec.Command("python3", "comfyui/addresses.py", filepath.Join(tree, "custom_nodes"),
		"patchbay"))
	if err != nil || !strings.Contains(string(out), "7 nodes") {
		t.Errorf("addresses that a workflow names: %v\n%s", err, out)
	}
}
