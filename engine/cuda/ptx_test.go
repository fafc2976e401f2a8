//go:build cgo

package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPTXIsThatOfItsSources compares the hash recorded in every PTX file with that of its sources. `make cuda-check`,
// which needs the compiler, checks that the text itself is what the compiler emits.
func TestPTXIsThatOfItsSources(t *testing.T) {
	sources, err := filepath.Glob("kernels/*.cu")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources, %v", err)
	}
	shared := readAll(t, "kernels/args.h") + readAll(t, "kernels/device.cuh")
	for _, source := range sources {
		sum := sha256.Sum256([]byte(shared + readAll(t, source)))
		file := strings.TrimSuffix(source, ".cu") + ".ptx"
		first, _, _ := strings.Cut(readAll(t, file), "\n")
		if want := "// sources " + hex.EncodeToString(sum[:]); first != want {
			t.Errorf("%s starts with %q, its sources give %q: make cuda-kernels", file, first, want)
		}
	}
	made, err := filepath.Glob("kernels/*.ptx")
	if err != nil || len(made) != len(sources) {
		t.Errorf("%d PTX files for %d sources, %v", len(made), len(sources), err)
	}
}

// TestEveryKernelIsUsed checks that the table of kernels has every kernel of the PTX once, and that the PTX needs no
// shared memory besides what launches request.
func TestEveryKernelIsUsed(t *testing.T) {
	files, err := filepath.Glob("kernels/*.ptx")
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, f := range files {
		text += readAll(t, f)
	}
	known := map[string]bool{}
	for _, k := range kernels {
		if known[k.name] {
			t.Errorf("%s stands twice in the table", k.name)
		}
		known[k.name] = true
	}
	found := regexp.MustCompile(`\.visible \.entry (\w+)\(`).FindAllStringSubmatch(text, -1)
	for _, m := range found {
		if !known[m[1]] {
			t.Errorf("no call launches %s", m[1])
		}
	}
	if len(found) != len(kernels) {
		t.Errorf("%d kernels in the PTX, %d in the table", len(found), len(kernels))
	}
	for _, m := range regexp.MustCompile(`\.shared .*\[\d+\];`).FindAllString(text, -1) {
		t.Errorf("static shared memory: %s", m)
	}
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
