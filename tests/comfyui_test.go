package tests

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestComfyUIPackageIsSmall bounds the node package, without the client, and checks it for what the registry's rules
// forbid.
func TestComfyUIPackageIsSmall(t *testing.T) {
	files, err := filepath.Glob("../comfyui/*.py")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	lines := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(b, []byte("\n"))
		for _, bad := range []string{"eval(", "subprocess", "os.system", "pip install"} {
			if strings.Contains(string(b), bad) {
				t.Errorf("%s: %q has no place in a node package", f, bad)
			}
		}
	}
	if lines > 1900 { // 1,500 when they had 160 columns
		t.Errorf("the package has %d lines, at most 1900", lines)
	}
}
