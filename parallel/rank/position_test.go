package rank

import (
	"testing"

	late "patchbay/engine/deferred"
	"patchbay/parallel/plan"
)

// TestPositionsAreTheDevices checks that reports show where a rank's device is, however far its host is ahead.
func TestPositionsAreTheDevices(t *testing.T) {
	ops := late.New(opsOf(t))
	p := newPosition(ops)
	p.start(plan.Micro{Evaluation: 3, Patch: 1})
	p.block(0)
	three := ops.Record()
	p.block(1)
	p.block(2)
	check := func(when, want string, moves int64) {
		t.Helper()
		if s := p.read(); s.Place != want || s.Moves != moves || !s.Busy {
			t.Errorf("%s: %+v, want %d moves and %q", when, s, moves, want)
		}
	}
	check("before anything has run", "evaluation 3, patch 1, start", 0)
	if err := three.Wait(); err != nil {
		t.Fatal(err)
	}
	check("after the first block was begun", "evaluation 3, patch 1, block 0", 2)
	if err := ops.Sync(); err != nil {
		t.Fatal(err)
	}
	check("in the end", "evaluation 3, patch 1, block 2", 4)
}
