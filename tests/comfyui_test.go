package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestComfyUIPackageKeepsRules checks the node package for what the registry's rules forbid.
func TestComfyUIPackageKeepsRules(t *testing.T) {
	files, err := filepath.Glob("../comfyui/*.py")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"eval(", "subprocess", "os.system", "pip install"} {
			if strings.Contains(string(b), bad) {
				t.Errorf("%s: %q has no place in a node package", f, bad)
			}
		}
	}
}
