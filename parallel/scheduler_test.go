package parallel

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/tests/race"
)

// TestAnyInterleavingGivesTheSameBits runs ranks and samplers one at a time in orders of several seeds: a seed repeats
// its order, seeds differ in their orders, and every order gives the bits of the free run.
func TestAnyInterleavingGivesTheSameBits(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: ranks run one at a time")
	}
	g := openGolden(t, anyModel)
	free := newEngine(t)
	seeds := []uint64{1, 2}
	if soak {
		for s := range uint64(98) {
			seeds = append(seeds, 3+s)
		}
	}
	for _, plan := range []string{
		"", "ulysses=3", "ring=3", "gather=3", "tensor=2", "pipe=3,patches=4,warmup=1", "pipe=2,ulysses=2,patches=3,warmup=1",
		"cfg=2,pipe=2,patches=3,warmup=0",
		"pipe=2,ring=2,patches=5,warmup=2",
	} {
		r := parityRequest(t, g, anyModel, 1, 8, 8, 4)
		r.Plan = plan
		want, err := free.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		var orders []string
		for _, seed := range seeds {
			e, err := NewPool(Config{NewOps: testOps, Order: seed})
			if err != nil {
				t.Fatal(err)
			}
			var traces []string
			for range 2 {
				got, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatalf("%q, order %d: %v", plan, seed, err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); rel != 0 {
					t.Errorf("%q, order %d: differs from the free run by %.3g", plan, seed, rel)
				}
				traces = append(traces, strings.Join(e.whole.team.Scheduler.Trace, ", "))
			}
			e.Close()
			if traces[0] != traces[1] {
				t.Errorf("%q, order %d: two runs went differently:\n%.500s\n%.500s", plan, seed, traces[0], traces[1])
			}
			orders = append(orders, traces[0])
		}
		slices.Sort(orders)
		if n := len(slices.Compact(orders)); plan != "" && n < 2 {
			t.Errorf("%q: %d seeds gave one and the same order", plan, len(seeds))
		}
	}
}

// TestDeadlockIsToldAtOnce checks that with one goroutine running at a time a rank that waits for a message that never
// comes is reported without a deadline.
func TestDeadlockIsToldAtOnce(t *testing.T) {
	var victim comm.Comm
	e, err := NewPool(Config{Order: 1, Patience: time.Hour, NewOps: func(rank, ranks int) (engine.Ops, error) {
		ops, err := testOps(rank, ranks)
		return &stray{Ops: ops, comm: func() comm.Comm { return victim }, rank: rank}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := parityRequest(t, openGolden(t, anyModel), anyModel, 1, 8, 8, 4)
	r.Plan = "pipe=2,patches=2,warmup=1"
	p, err := plan.Parse(r.Plan)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.whole.assemble(p, r.Model.Spec); err != nil {
		t.Fatal(err)
	}
	victim = rankOf(e.whole.team.Members[1]).End(plan.AxisPipe)
	_, err = e.Sample(context.Background(), r, nil)
	var pe *fault.Error
	if !errors.As(err, &pe) || pe.Code != fault.PeerLost ||
		!strings.HasPrefix(pe.Text, "deadlock: rank 1 at evaluation ") ||
		!strings.Contains(pe.Text, "waits in pipe for rank 0 to receive") {
		t.Errorf("got %v, want a deadlock that names rank 1 and what it waits for", err)
	}
}

// stray is an Ops that on rank 1 sends a message that no rank receives.
type stray struct {
	engine.Ops
	comm  func() comm.Comm
	rank  int
	calls int
}

func (s *stray) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	if s.calls++; s.rank == 1 && s.calls == 60 && s.comm() != nil {
		s.comm().SendRecv(engine.Tensor{}, -1, engine.FromF32(make([]float32, 1), 1), 0)
	}
	s.Ops.Linear(y, x, w, e)
}
