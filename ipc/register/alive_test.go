package register

import (
	"testing"
	"time"
)

// TestPausedMachineTakesNothing checks that a machine that was itself stopped, and so heard nobody, takes all others
// for alive until its own heartbeats have come through for a while again.
func TestPausedMachineTakesNothing(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := &Register{cfg: Config{Name: "a"}, heard: map[string]time.Time{"a": now}, notes: map[string]Machine{"b": {}}}
	r.steady, r.beaten = now.Add(-time.Hour), now
	if r.Alive("b") || len(r.Daemons()) > 0 {
		t.Error("a machine that was never heard is thought alive")
	}
	r.beaten = now.Add(-DeadAfter)
	if !r.Alive("b") || len(r.Daemons()) != 1 {
		t.Error("after a pause of this process another machine is thought gone")
	}
	if r.beaten, r.heard["a"] = now, now.Add(-DeadAfter); !r.Alive("b") {
		t.Error("another machine is thought gone by one that does not hear its own heartbeats")
	}
}
