package clients

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// pythonNeeds are the packages of the Python client's tests, by name.
const pythonNeeds = "msgpack>=1.0 numpy>=1.24 nats-py>=2.6 pytest>=7"

// python returns the interpreter of a virtual environment with pythonNeeds. It is kept beside Go's build cache, one for
// every set of needs, so that only the first run installs. A machine without python3 or without a package index fails
// the test: the client must not go untested.
func python(t *testing.T) string {
	t.Helper()
	harness.Installing.Lock()
	defer harness.Installing.Unlock()
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatalf("go env GOCACHE: %v", err)
	}
	version, err := exec.Command("python3", "--version").Output()
	if err != nil {
		t.Fatalf("the Python client is tested with python3, which does not run here: %v", err)
	}
	sum := sha256.Sum256([]byte(pythonNeeds + string(version)))
	dir := filepath.Join(strings.TrimSpace(string(cache)), fmt.Sprintf("patchbay-venv-%x", sum[:6]))
	bin := filepath.Join(dir, "bin", "python")
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return bin
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, line := range [][]string{
		{"python3", "-m", "venv", dir},
		append([]string{bin, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"},
			strings.Fields(pythonNeeds)...),
	} {
		if out, err := harness.Printed(exec.Command(line[0], line[1:]...)); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(line, " "), err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "complete"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return bin
}

// runPython runs a command of the environment and returns what it printed.
func runPython(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1"), env...)
	out, err := harness.Printed(cmd)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestPythonClient runs the client's own tests, and the example over stdio, the socket and NATS, all three of which
// must write the same picture.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: needs a Python environment")
	}
	py, program := python(t), harness.Build(t)
	client, err := filepath.Abs("../../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PATCHBAY_PROGRAM=" + program, "PATCHBAY_MODELS=" + harness.DemoModels(t), "PYTHONPATH=" + client}
	out := runPython(t, env, py, "-m", "pytest", "-q", "-s", "--tb=short", "-p", "no:cacheprovider", "-o",
		"faulthandler_timeout=60", filepath.Join(client, "tests"))
	for _, line := range strings.Split(out, "\n") {
		if strings.Contains(line, "64 MiB") || strings.Contains(line, " passed") {
			t.Log(strings.TrimLeft(line, "."))
		}
	}
	s := harness.Start(t, program, "")
	dir := t.TempDir()
	var first []byte
	for _, door := range [][]string{
		{"--spawn", program, "--models", harness.DemoModels(t)},
		{"--socket", s.Socket},
		{"--nats", s.URL},
	} {
		file := filepath.Join(dir, "picture.png")
		runPython(t, env, append([]string{py, "../../examples/python_ksampler.py", "--out", file, "--steps", "4"},
			door...)...)
		picture, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = picture
		}
		if !strings.HasPrefix(string(picture), "\x89PNG") || string(picture) != string(first) {
			t.Errorf("%s: a picture of %d bytes, over stdio one of %d; they must be equal", door[0], len(picture), len(first))
		}
	}
}
