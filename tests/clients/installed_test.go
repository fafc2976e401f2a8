package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"patchbay/tests/harness"
)

// TestInstalledExamplesRun installs from this tree and uses the result as a person would, away from the tree.
func TestInstalledExamplesRun(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: builds the program and needs a Python environment")
	}
	prefix := t.TempDir()
	install := exec.Command(filepath.Join(harness.Root(t), "install.sh"), "--prefix", prefix)
	if out, err := harness.Printed(install); err != nil {
		t.Fatalf("install.sh: %v\n%s", err, out)
	}
	program, examples := filepath.Join(prefix, "bin/patchbay"), filepath.Join(prefix, "share/patchbay/examples")
	made := t.TempDir()
	for _, line := range [][]string{
		{"go", "vet", "./events_go", "./bucket_rule"},
		{program, "run", "--local", "--models", "demo", "demo.json", "--set", "3.steps=1", "--out", made},
		{
			python(t), "python_ksampler.py", "--spawn", program, "--models", "demo", "--steps", "1",
			"--out", filepath.Join(made, "k.png"),
		},
	} {
		cmd := exec.Command(line[0], line[1:]...)
		cmd.Dir, cmd.Env = examples, append(os.Environ(), "PYTHONPATH=", "PYTHONDONTWRITEBYTECODE=1", "GOFLAGS=-mod=readonly")
		if out, err := harness.Printed(cmd); err != nil {
			t.Errorf("%v: %v\n%s", line, err, out)
		}
	}
	for _, name := range []string{"demo_00001_.png", "k.png"} {
		if _, err := os.Stat(filepath.Join(made, name)); err != nil {
			t.Error(err)
		}
	}
	out, err := harness.Printed(exec.Command(filepath.Join(harness.Root(t), "install.sh"), "--prefix", prefix,
		"--uninstall"))

	if left, _ := filepath.Glob(prefix + "/*"); err != nil || len(left) > 0 {
		t.Errorf("after uninstall there is %v: %v\n%s", left, err, out)
	}
}
