package comm_test

import (
	"testing"
	"testing/synctest"
	"time"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/commtest"
)

// ranks returns n Ops on the memory of this process.
func ranks(n int) ([]engine.Ops, func() error, error) {
	out := make([]engine.Ops, n)
	for r := range out {
		out[r] = ref.New()
	}
	return out, func() error { return nil }, nil
}

func TestLocal(t *testing.T) {
	commtest.Run(t, commtest.Rig{Transport: comm.Local{}, Ops: ranks})
}

// TestOfferOfABusySlotWaits checks that in this transport Offer blocks while the slot's last message is not received.
func TestOfferOfABusySlotWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends, err := comm.Local{}.Connect(comm.Group{Name: "test", Deadline: time.Minute}, make([]engine.Ops, 2))
		if err != nil {
			t.Fatal(err)
		}
		vec := func(v ...float32) engine.Tensor { return engine.FromF32(v, len(v)) }
		slot, taken := vec(0), make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			ends[0].Offer(slot, vec(1), 1)
			ends[0].Offer(slot, vec(2), 1)
			select {
			case <-taken:
			default:
				t.Error("the second offer did not wait for the first one")
			}
		}()
		synctest.Wait()
		close(taken)
		ends[1].Post(vec(0), 0)
		ends[1].Await(vec(0), 0)
		<-done
	})
}
