//go:build cgo

package cuda

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"patchbay/engine/cuda/compiled"
)

// TestPTXIsThatOfItsSources compares the hash recorded above the PTX of every source with that of the source. `make
// cuda-check`, which needs the compiler, checks that the text itself is what the compiler emits.
func TestPTXIsThatOfItsSources(t *testing.T) {
	sources, err := filepath.Glob("kernels/*.cu")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources, %v", err)
	}
	all := unpacked(t)
	if len(all) != len(sources) {
		t.Errorf("PTX of %d sources, there are %d: make cuda-kernels", len(all), len(sources))
	}
	shared := readAll(t, "kernels/args.h") + readAll(t, "kernels/device.cuh")
	for _, m := range all {
		first, _, _ := strings.Cut(string(m.Image), "\n")
		source := m.Name + ".cu"
		want := fmt.Sprintf("// source %s %x", source, sha256.Sum256([]byte(shared+readAll(t, "kernels/"+source))))
		if first != want {
			t.Errorf("the PTX of %s starts with %q, the sources give %q: make cuda-kernels", source, first, want)
		}
	}
}

// TestEveryKernelIsUsed checks that the table of kernels has every kernel of the PTX once, and that the PTX needs no
// shared memory besides what launches request.
func TestEveryKernelIsUsed(t *testing.T) {
	text := ""
	for _, m := range unpacked(t) {
		text += string(m.Image)
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

func unpacked(t *testing.T) []compiled.Module {
	t.Helper()
	all, err := compiled.PTX()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
