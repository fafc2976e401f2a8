package plan

import (
	"io"
	"strings"
	"testing"
)

// TestOldFlagsAreRefusedByName: flags that are gone name what takes their place, or why nothing does.
func TestOldFlagsAreRefusedByName(t *testing.T) {
	for flag, want := range map[string]string{"--profile=f.json": "--rates f.json", "--requests=2": "removed"} {
		cmd := Command()
		cmd.SetArgs([]string{"--model", "flux-dev", "--devices", "cpu", flag})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a refusal that says %q", flag, err, want)
		}
	}
}
