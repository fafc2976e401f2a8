// Package scratch writes the small files that tests need. Only tests import it.
package scratch

import (
	"os"
	"path/filepath"
	"testing"
)

// Touch makes an empty file and its folders.
func Touch(t testing.TB, path string) {
	t.Helper()
	Write(t, path, nil)
}

// Write makes a file with the given content, and its folders.
func Write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
