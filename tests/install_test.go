package tests

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// installer is install.sh in its own small tree. Go, make, compiler and apt-get are stand-ins, so that nothing is built
// or downloaded.
type installer struct {
	t                   *testing.T
	tree, tools, prefix string
}

// stands returns the stand-ins by name. make builds the program as `make build` does.
func stands() map[string]string {
	return map[string]string{
		"go":      "echo go version go1.26.8 linux/amd64",
		"gcc":     "exit 0",
		"make":    "mkdir -p bin\ncp program bin/patchbay\nchmod 755 bin/patchbay",
		"id":      "echo 0",
		"apt-get": `echo "$@" >> apt.log`,
	}
}

func newInstaller(t *testing.T) *installer {
	t.Helper()
	i := &installer{t, t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "a prefix")}
	script, err := os.ReadFile(filepath.Join(harness.Root(t), "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	i.write("install.sh", string(script))
	i.write("Makefile", "")
	i.write("go.mod", "module patchbay\n\ngo 1.26.8\n")
	i.write("program", "#!/bin/sh\ncase $1 in\ncompletion) echo \"completion for $2\" ;;\n"+
		"version) echo patchbay 9.9 ;;\nesac\n")
	i.write("go.sum", "sums")
	i.write("clients/python/patchbay/client.py", "pass")
	i.write("examples/demo.json", "{}")
	i.write("examples/demo/vae/ae.safetensors", "weights")
	i.write("examples/demo/train/train.py", "stays here")
	for _, name := range strings.Fields("sh sed grep find sort wc tr dirname uname mkdir cp mv chmod rm rmdir " +
		"mktemp cat") {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(i.tools, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, body := range stands() {
		i.stand(name, body)
	}
	return i
}

func (i *installer) write(path, text string) {
	i.t.Helper()
	full := filepath.Join(i.tree, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		i.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o755); err != nil {
		i.t.Fatal(err)
	}
}

// stand replaces a tool. An empty body removes it.
func (i *installer) stand(name, body string) {
	i.t.Helper()
	path := filepath.Join(i.tools, name)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		i.t.Fatal(err)
	}
	if body == "" {
		return
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		i.t.Fatal(err)
	}
}

// run starts the script from another folder and returns what it printed.
func (i *installer) run(args ...string) (string, error) {
	i.t.Helper()
	cmd := exec.Command(filepath.Join(i.tree, "install.sh"), append(args, "--prefix", i.prefix)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + i.tools, "HOME=/nonexistent"}
	out, err := harness.Printed(cmd)
	return string(out), err
}

func (i *installer) must(args ...string) string {
	i.t.Helper()
	out, err := i.run(args...)
	if err != nil {
		i.t.Fatalf("install.sh %v: %v\n%s", args, err, out)
	}
	return out
}

// files lists the files below the prefix.
func (i *installer) files() []string {
	i.t.Helper()
	var out []string
	err := filepath.WalkDir(i.prefix, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(i.prefix, path)
		if !d.IsDir() {
			out = append(out, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		i.t.Fatal(err)
	}
	return out
}

func TestInstallTwiceThenUninstall(t *testing.T) {
	t.Parallel()
	i := newInstaller(t)
	want := []string{
		"bin/patchbay", "share/bash-completion/completions/patchbay", "share/fish/vendor_completions.d/patchbay.fish",
		"share/patchbay/clients/python/patchbay/client.py",
		"share/patchbay/examples/demo/vae/ae.safetensors", "share/patchbay/examples/demo.json",
		"share/patchbay/examples/go.mod", "share/patchbay/examples/go.sum", "share/patchbay/examples/old.json",
		"share/patchbay/installed-files", "share/zsh/site-functions/_patchbay",
	}
	i.write("examples/old.json", "{}")
	if out := i.must(); !strings.Contains(out, "checking: patchbay 9.9") || !strings.Contains(out, "bin is not in PATH") {
		t.Errorf("output lacks the version or the advice about PATH:\n%s", out)
	}
	if got := i.files(); !slices.Equal(got, want) {
		t.Errorf("installed files:\n got %q\nwant %q", got, want)
	}
	if text, err := os.ReadFile(filepath.Join(i.prefix,
		"share/zsh/site-functions/_patchbay")); string(text) != "completion for zsh\n" {
		t.Errorf("zsh completion: got %q (%v)", text, err)
	}
	if err := os.Remove(filepath.Join(i.tree, "examples/old.json")); err != nil {
		t.Fatal(err)
	}
	i.must()
	want = slices.DeleteFunc(want, func(f string) bool { return strings.HasSuffix(f, "old.json") })
	if got := i.files(); !slices.Equal(got, want) {
		t.Errorf("after a second installation without old.json:\n got %q\nwant %q", got, want)
	}
	mine := filepath.Join(i.prefix, "share/patchbay/jobs.db")
	if err := os.WriteFile(mine, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := i.must("--uninstall"); !strings.Contains(out, "kept:") {
		t.Errorf("uninstall did not say that it kept a foreign file:\n%s", out)
	}
	if got := i.files(); !slices.Equal(got, []string{"share/patchbay/jobs.db"}) {
		t.Errorf("after uninstall: got %q, want only the foreign file", got)
	}
	if out := i.must("--uninstall"); !strings.Contains(out, "nothing") {
		t.Errorf("second uninstall:\n%s", out)
	}
}

// TestInstallRelease installs a release, which has the program and no Makefile, where there is neither Go nor compiler.
// A program that does not run there is not installed.
func TestInstallRelease(t *testing.T) {
	t.Parallel()
	i := newInstaller(t)
	for _, name := range []string{"go", "gcc", "make", "apt-get"} {
		i.stand(name, "")
	}
	if err := os.Remove(filepath.Join(i.tree, "Makefile")); err != nil {
		t.Fatal(err)
	}
	i.write("bin/patchbay", "#!/bin/sh\necho no such C library >&2\nexit 1\n")
	if out, err := i.run(); err == nil || !strings.Contains(out, "does not run here") || len(i.files()) > 0 {
		t.Errorf("a program that does not run: %v, files %q\n%s", err, i.files(), out)
	}
	text, err := os.ReadFile(filepath.Join(i.tree, "program"))
	if err != nil {
		t.Fatal(err)
	}
	i.write("bin/patchbay", string(text))
	if out := i.must(); !strings.Contains(out, "found a release: patchbay 9.9") ||
		!slices.Contains(i.files(), "bin/patchbay") {
		t.Errorf("files %q\n%s", i.files(), out)
	}
}

func TestInstallDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	i := newInstaller(t)
	i.stand("gcc", "")
	out := i.must("--dry-run")
	for _, text := range []string{
		"would run: apt-get install -y --no-install-recommends gcc libc6-dev",
		"would run: make build",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("dry run does not say %q:\n%s", text, out)
		}
	}
	if got := i.files(); len(got) > 0 {
		t.Errorf("a dry run made %q", got)
	}
	for _, path := range []string{"bin/patchbay", "apt.log"} {
		if _, err := os.Stat(filepath.Join(i.tree, path)); err == nil {
			t.Errorf("a dry run made %s", path)
		}
	}
}

func TestInstallFetchesCompilerWithApt(t *testing.T) {
	t.Parallel()
	i := newInstaller(t)
	i.stand("gcc", "")
	i.must()
	log, err := os.ReadFile(filepath.Join(i.tree, "apt.log"))
	if want := "update\ninstall -y --no-install-recommends gcc libc6-dev\n"; string(log) != want {
		t.Errorf("apt-get was called with %q (%v), want %q", log, err, want)
	}
}

func TestInstallExplainsWhatItCannotDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, tool, body string
		say              []string
	}{
		{"no Go", "go", "", []string{"https://go.dev/dl/", "Go 1.26 or newer is missing"}},
		{"old Go", "go", "echo go version go1.9 linux/amd64", []string{"found: 1.9", "Go 1.26 or newer is missing"}},
		{"no apt", "apt-get", "", []string{"dnf install gcc make", "missing: gcc libc6-dev"}},
		{"neither root nor sudo", "id", "echo 1000", []string{"as root or through sudo", "missing: gcc libc6-dev"}},
		{"apt fails", "apt-get", "exit 100", []string{"install gcc libc6-dev yourself"}},
		{"build fails", "make", "exit 2", []string{"nothing was installed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := newInstaller(t)
			i.stand("gcc", "exit 1")
			i.stand(c.tool, c.body)
			out, err := i.run()
			if err == nil {
				t.Errorf("the script went on:\n%s", out)
			}
			for _, text := range c.say {
				if !strings.Contains(out, text) {
					t.Errorf("output does not say %q:\n%s", text, out)
				}
			}
			if got := i.files(); len(got) > 0 {
				t.Errorf("a failed installation made %q", got)
			}
		})
	}
}
