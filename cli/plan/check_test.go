package plan

import (
	"context"
	"testing"

	"patchbay/daemon"
	"patchbay/parallel"
	"patchbay/parallel/hardware"
)

// TestCheckComparesLikeWithLike checks that bytes and memory of a run are exactly those predicted, and that every rank
// shows time in each kind of work. Times are not judged.
func TestCheckComparesLikeWithLike(t *testing.T) {
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "ulysses=2", "pipe=2,patches=3", "cfg=2,tensor=2,form=scatter"} {
		r := demo(t, "64x64", 2)
		r.Plan, r.Profile = text, true
		stats, err := profiled(context.Background(), parallel.Config{NewOps: daemon.NewOps, Machine: &m, Order: 1}, r)
		if err != nil {
			t.Fatal(err)
		}
		c, err := compare(r, m, stats)
		if err != nil {
			t.Fatal(err)
		}
		for i, is := range c.ran {
			if c.says[i] != c.counts[i] {
				t.Errorf("%s: rank %d sent %d bytes, predicted %d", c.plan, i, c.counts[i], c.says[i])
			}
			if says := c.sim.Ranks[i]; is.Products <= 0 || is.Attention <= 0 || is.Other <= 0 || says.Products <= 0 ||
				says.Attention <= 0 || says.Other <= 0 {
				t.Errorf("%s: rank %d measured %+v, predicted %+v: something took no time", c.plan, i, is, says)
			}
		}
		if c.memory != c.took {
			t.Errorf("%s: the rank that needs most took %d bytes, predicted %d", c.plan, c.took, c.memory)
		}
	}
}
