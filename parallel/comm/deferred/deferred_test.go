package deferred_test

import (
	"fmt"
	"testing"

	"patchbay/engine"
	late "patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/parallel/comm/commtest"
	"patchbay/parallel/comm/deferred"
)

// TestDeferred: as late as possible, and in an order of its own.
func TestDeferred(t *testing.T) {
	for _, seed := range []uint64{0, 1} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			ranks := func(n int) ([]engine.Ops, func() error, error) {
				device, out := late.NewDevice(seed), make([]engine.Ops, n)
				for r := range out {
					out[r] = device.Ops(ref.New())
				}
				return out, func() error { return nil }, nil
			}
			commtest.Run(t, commtest.Rig{Transport: deferred.Transport{}, Late: true, Ops: ranks})
		})
	}
}
