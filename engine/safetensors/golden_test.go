package safetensors_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/engine/safetensors"
	"patchbay/tests/golden"
)

// TestFilesOfTheReferenceImplementation checks that the golden files, written by Python's safetensors, can be read and
// written again byte for byte.
func TestFilesOfTheReferenceImplementation(t *testing.T) {
	paths, err := filepath.Glob("../../tests/golden/*.safetensors.planes.gz")
	if err != nil || len(paths) < 6 {
		t.Fatalf("golden files: found %v (%v), want at least 6", paths, err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".planes.gz")
		raw, err := golden.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := golden.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		var entries []safetensors.Tensor
		for _, name := range f.Names() {
			e, _ := f.Entry(name)
			entries = append(entries, e)
		}
		var out bytes.Buffer
		if err := safetensors.Write(&out, f.Metadata(), entries); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), raw) {
			t.Errorf("%s: %d tensors written again differ: %d bytes, want %d", name, len(entries), out.Len(), len(raw))
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
