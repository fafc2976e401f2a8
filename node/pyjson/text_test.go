package pyjson

import (
	"strings"
	"testing"
)

// TestExcerpt checks that long text is cut, but numbers that Python can parse are not.
func TestExcerpt(t *testing.T) {
	for in, want := range map[string]int{
		strings.Repeat("x", 1000): 1000, strings.Repeat("x", 1001): 1000 + len("... (1001 bytes)"),
		strings.Repeat("9", 4300): 4300, "-" + strings.Repeat("9", 4300): 4301,
		strings.Repeat("-", 4200) + "9": 1000 + len("... (4201 bytes)"),
		strings.Repeat("9", 4400):       1000 + len("... (4400 bytes)"),
	} {
		if got := Excerpt(in); len(got) != want {
			t.Errorf("%.3s... of %d bytes: %d are left, want %d", in, len(in), len(got), want)
		}
	}
}
