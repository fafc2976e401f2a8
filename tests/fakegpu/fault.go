package fakegpu

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repeats is how often a test may run until it notices a fault. A host that waits lets every stream go on that can, not
// only those that it waits for: until a peer has issued its part, all other work gets done, including work that the
// code forgot to wait for. When the peer's goroutine comes is up to the machine. (An NCCL slot that is sent before it
// is filled shows in 8 runs of 12; running one stream far ahead of the others makes that 1 of 12.)
const repeats = "12"

// Faults plants one fault after the other and runs the test that must notice it: a test that passes all the same does
// not guard what it is for. In a copy of File, New replaces Old, which must occur exactly once. File is a base name
// among the sources of the fake, or the path of a Go or C file of the program relative to the folder of the test. Test,
// of the same package, must then fail with output that contains Want. The sources have no switches for faults. With
// -short nothing runs.
func Faults(t *testing.T, list []struct{ Name, File, Old, New, Test, Want string }) {
	t.Helper()
	if testing.Short() {
		t.Skip("NOT RUN in the short form: every fault compiles a kernel or a package")
	}
	for _, f := range list {
		t.Run(f.Name, func(t *testing.T) {
			change := Change{File: f.File, Old: f.Old, New: f.New}
			pattern := "^" + strings.ReplaceAll(f.Test, "/", "$/^") + "$"
			args := []string{
				os.Args[0], "-test.run", pattern, "-test.timeout", "120s", "-test.count", repeats, "-test.failfast",
			}
			library := ""
			if ext := filepath.Ext(f.File); ext == ".go" || ext == ".c" {
				args = []string{
					"go", "test", "-tags", "fakegpu", "-count", repeats, "-failfast", "-overlay", overlay(t, change), "-run", pattern,
					"-timeout", "120s", ".",
				}
				library = Library(t)
			} else {
				library = Library(t, change)
			}
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(os.Environ(), "PATCHBAY_TEST_CUDA="+library)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("%s passes", f.Test)
			}
			if !bytes.Contains(out, []byte(f.Want)) || bytes.Contains(out, []byte("[build failed]")) {
				t.Errorf("%s fails without %q:\n%.2000s", f.Test, f.Want, out)
			}
			t.Logf("noticed: %s", firstLine(out))
		})
	}
}

// overlay writes a changed copy of a file and returns the path of a description that makes the go command use it in
// place of the original.
func overlay(t *testing.T, c Change) string {
	t.Helper()
	path, err := filepath.Abs(c.File)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), c.Old); n != 1 {
		t.Fatalf("the fault in %s finds its place %d times, want 1: %q", c.File, n, c.Old)
	}
	dir := t.TempDir()
	changed, list := filepath.Join(dir, filepath.Base(c.File)), filepath.Join(dir, "overlay.json")
	description := fmt.Sprintf(`{"Replace": {%q: %q}}`, path, changed)
	for name, body := range map[string]string{changed: strings.Replace(string(text), c.Old, c.New, 1), list: description} {
		if err := os.WriteFile(name, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// firstLine returns the first line that reports a failure, or the beginning of out.
func firstLine(out []byte) string {
	for line := range strings.Lines(string(out)) {
		if s := strings.TrimSpace(line); strings.Contains(s, "_test.go") || strings.Contains(s, "fakegpu:") ||
			strings.Contains(s, "optest.go") || strings.Contains(s, "commtest") {
			return s
		}
	}
	return strings.TrimSpace(string(out[:min(len(out), 200)]))
}
