package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// trial is a test whose end and failures the test of the harness sees.
type trial struct {
	testing.TB
	cleanups []func()
	failures []string
}

func (f *trial) Cleanup(end func()) { f.cleanups = append(f.cleanups, end) }

func (f *trial) Errorf(format string, args ...any) {
	f.failures = append(f.failures, fmt.Sprintf(format, args...))
}

// end runs the cleanups as package testing does, and returns the failures.
func (f *trial) end() []string {
	for _, clean := range slices.Backward(f.cleanups) {
		clean()
	}
	return f.failures
}

// TestSecretsAreFound checks that a test fails if a program shows a secret of its URLs, token file or own registration,
// also if it is split over two writes, and passes if not.
func TestSecretsAreFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("token-in-a-file-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		words  []string
		writes []string
		fails  bool
	}{
		{"password", []string{"--nats", "nats://eve:passw0rd-1@h:1"}, []string{"a line\n", "at passw0rd-1@h\n"}, true},
		{"token", []string{"PATCHBAY_NATS_URL=nats://t0ken-of-eve@h"}, []string{`"nats":"nats://t0ken-of-eve@h"`}, true},
		{"escaped", []string{"tls://eve:pass%2Fw0rd-2@h"}, []string{"pass/w0rd-2"}, true},
		{"two writes", []string{"nats://eve:passw0rd-3@h"}, []string{"a longer text pass", "w0rd-3"}, true},
		{"token file", []string{"serve", "--token-file", file}, []string{"token-in-a-file-1"}, true},
		{"silent", []string{"nats://eve:passw0rd-4@h"}, []string{"nats://h", "passw0rd"}, false},
	} {
		f := &trial{TB: t}
		secretsOf(f, row.words)
		var out Output
		for _, text := range row.writes {
			if _, err := out.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if got := f.end(); (len(got) > 0) != row.fails {
			t.Errorf("%s: failures %q, want any: %t", row.name, strings.Join(got, "; "), row.fails)
		}
	}
}
