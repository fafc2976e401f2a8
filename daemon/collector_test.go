package daemon

import (
	"runtime/debug"
	"testing"
)

// TestCollectorIsPutBack checks that the collector's setting is restored when the last of overlapping payloads is
// there.
func TestCollectorIsPutBack(t *testing.T) {
	t.Setenv("GOGC", "")
	now := func() int {
		was := debug.SetGCPercent(77)
		debug.SetGCPercent(was)
		return was
	}
	before := now()
	var c collector
	a, b := c.relax(), c.relax()
	a()
	a()
	if got := now(); got != relaxedPercent {
		t.Errorf("with one payload of two under way the percentage is %d, want %d", got, relaxedPercent)
	}
	b()
	if got := now(); got != before {
		t.Errorf("afterwards the percentage is %d, want %d", got, before)
	}
	t.Setenv("GOGC", "50")
	c.relax()()
	if got := now(); got != before {
		t.Errorf("with GOGC set the percentage is %d, want %d", got, before)
	}
}
