package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"patchbay/tests/harness"
)

// TestTreeOfAVisitTravels checks that what a GPU machine needs of the tree leaves room for the programs in the 60 MiB
// that travel to it, as make gpu-pack does with the programs built.
func TestTreeOfAVisitTravels(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(filepath.Join(harness.Root(t), ".git")); err != nil {
		t.Skipf("git knows what is tracked: %v", err)
	}
	cmd := exec.Command("tests/gpu.sh", "tree")
	cmd.Dir = harness.Root(t)
	if out, err := harness.Printed(cmd); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
