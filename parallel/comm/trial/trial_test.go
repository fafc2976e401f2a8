package trial

import (
	"sync/atomic"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
)

// apart makes ranks meet only where the trial does it: their ring moves nothing.
type apart struct{ comm.Local }

func (a apart) Connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	ends, err := a.Local.Connect(g, ops)
	for i, c := range ends {
		ends[i] = still{c}
	}
	return ends, err
}

type still struct{ comm.Comm }

func (still) SendRecv(engine.Tensor, int, engine.Tensor, int) {}

// stamped counts its Stamps, at the beginning and the end of each run, and the runs that begin too early.
type stamped struct {
	engine.Ops
	noted atomic.Int64
	other *stamped
	early *atomic.Int64
}

func (s *stamped) Stamp() func() time.Duration {
	if n := s.noted.Add(1) - 1; n%2 == 0 && s.other.noted.Load() < n {
		s.early.Add(1)
	}
	return func() time.Duration { return 0 }
}

// TestRanksMeetBeforeTheClockStarts checks that no rank begins a run before the other one has finished the run before.
func TestRanksMeetBeforeTheClockStarts(t *testing.T) {
	var early atomic.Int64
	a, b := &stamped{Ops: ref.New(), early: &early}, &stamped{Ops: ref.New(), early: &early}
	a.other, b.other = b, a
	tr := Trial{Exchange: Ring, Bytes: 8, Warmup: 1, Runs: 500, Row: 1}
	if _, err := tr.Run(t.Context(), apart{}, comm.Group{Ranks: []int{0, 1}}, []engine.Ops{a, b}); err != nil {
		t.Fatal(err)
	}
	if n := early.Load(); n > 0 {
		t.Errorf("%d of 1002 runs begin while the other rank is in the run before", n)
	}
}
