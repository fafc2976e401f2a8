package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/tests/harness"
	"patchbay/tests/scratch"
)

// TestKnownVulnerabilities checks what tests/vulnerabilities.sh makes of the answers of govulncheck: a vulnerability
// that is reached fails and so does a question that cannot be asked, but no database, or none in time, is NOT RUN.
func TestKnownVulnerabilities(t *testing.T) {
	const (
		fetch = "govulncheck: fetching vulnerabilities: Get \"https://db.invalid/index/modules.json.gz\": dial tcp: lookup " +
			"db.invalid: no such host"
		reached = "=== Symbol Results ===\n\nVulnerability #1: GO-2026-9001\n    Found in: example.invalid/m@v1.0.0\n" +
			"      #1: ipc/wire/id.go:13:37: wire.NewID calls m.New\n\nYour code is affected by 1 vulnerability from 1 module."
		imported = "=== Symbol Results ===\n\nNo vulnerabilities found.\n\nYour code is affected by 0 vulnerabilities.\n" +
			"This scan also found 1 vulnerability in packages you import, but your code doesn't appear to call it."
		broken = "govulncheck: loading packages: \nThere are errors with the provided package patterns:\n"
	)
	for _, c := range []struct {
		name, answer string
		code         int
		fails        bool
		says, not    string
	}{
		{"none", "No vulnerabilities found.", 0, false, "No vulnerabilities found.", "NOT RUN"},
		{"imported only", imported, 0, false, "affected by 0", "NOT RUN"},
		{"reached", reached, 3, true, "GO-2026-9001", "NOT RUN"},
		{"reached, with words of a failure", reached + "\nin fetching vulnerabilities", 3, true, "GO-2026-9001", "NOT RUN"},
		{"no network", "Scanning\n" + fetch, 1, false, "NOT RUN: no database: no such host", ""},
		{"packages that do not load", broken, 1, true, "loading packages", "NOT RUN"},
		{"a crash", "panic: fetching vulnerabilities", 2, true, "panic", "NOT RUN"},
		{"no answer", "", -1, false, "NOT RUN: no answer within 1 s", ""},
		{"no program", "", -2, true, "No such file", "NOT RUN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := filepath.Join(dir, "govulncheck")
			text := fmt.Sprintf("#!/bin/sh\ncat %q\nexit %d\n", filepath.Join(dir, "answer"), c.code)
			if c.code == -1 {
				text = "#!/bin/sh\nexec sleep infinity\n"
			}
			scratch.Write(t, filepath.Join(dir, "answer"), []byte(c.answer+"\n"))
			if c.code != -2 {
				scratch.Write(t, program, []byte(text))
				if err := os.Chmod(program, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			wait := "600"
			if c.code == -1 {
				wait = "1"
			}
			cmd := exec.Command("./vulnerabilities.sh")
			cmd.Env = append(os.Environ(), "GOVULNCHECK="+program, "VULNERABILITIES_TIMEOUT="+wait)
			out, err := harness.Printed(cmd)
			if (err != nil) != c.fails || errors.Is(err, harness.ErrLate) || !strings.Contains(string(out), c.says) ||
				c.not != "" && strings.Contains(string(out), c.not) {
				t.Errorf("%v, want a failure: %t, %q and not %q\n%s", err, c.fails, c.says, c.not, out)
			}
		})
	}
}
