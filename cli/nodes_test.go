package cli

import (
	"bytes"
	"strings"
	"testing"
)

// command runs a command line and returns what it prints on stdout.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return commandWith(t, "", args...)
}

// commandWith is command with text on stdin; what it prints on stderr follows.
func commandWith(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	root := rootCmd("test")
	var out bytes.Buffer
	root.SetIn(strings.NewReader(in))
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.Execute()
	return out.String(), err
}

// TestNodesAreAligned checks that the list of classes has a header, and that every column begins where that of the
// header does.
func TestNodesAreAligned(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, args := range [][]string{{"nodes"}, {"nodes", "KSampler"}} {
		text, err := command(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(text, "\n")
		head := 0
		for !strings.HasPrefix(lines[head], "CLASS ") && !strings.HasPrefix(lines[head], "INPUT ") {
			if head++; head == len(lines) {
				t.Fatalf("%v has no header:\n%s", args, text)
			}
		}
		second := strings.Index(lines[head], strings.Fields(lines[head])[1])
		for _, line := range lines[head+1 : head+9] {
			if len(line) <= second || line[second] == ' ' || !strings.HasSuffix(line[:second], "  ") {
				t.Errorf("%v: its second column does not begin at %d: %q", args, second, line)
			}
		}
	}
}
