package deferred_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"patchbay/engine"
	late "patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/commtest"
	"patchbay/parallel/comm/deferred"
)

// TestDeferred runs the transport suite with calls as late as possible and in a pseudorandom order.
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

// TestFirstMessagesInOrder checks that messages keep their order when both sides create the stream between them at the
// same moment.
func TestFirstMessagesInOrder(t *testing.T) {
	for range 3000 {
		device := late.NewDevice(1)
		ops := []engine.Ops{device.Ops(ref.New()), device.Ops(ref.New())}
		ends, err := deferred.Transport{}.Connect(comm.Group{Name: "pipe"}, ops)
		if err != nil {
			t.Fatal(err)
		}
		rows := func(rank int) []engine.Tensor {
			b, err := ops[rank].Alloc(4 * 6)
			if err != nil {
				t.Fatal(err)
			}
			all := engine.NewTensor(b, engine.F32, 6)
			return []engine.Tensor{all.Slice(0, 0, 1), all.Slice(0, 1, 3), all.Slice(0, 3, 6)}
		}
		sources, slots, posts, got := rows(0), rows(0), rows(1), rows(1)
		var both sync.WaitGroup
		both.Go(func() {
			for i, src := range sources {
				ends[0].Offer(slots[i], src, 1)
			}
		})
		both.Go(func() {
			for _, p := range posts {
				ends[1].Post(p, 0)
			}
		})
		both.Wait()
		for _, dst := range got {
			ends[1].Await(dst, 0)
		}
		ended := make(chan error, 1)
		go func() { ended <- ops[1].Sync() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a message waits for one that waits for it")
		}
	}
}
