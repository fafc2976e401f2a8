package parallel

import (
	"context"
	"errors"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/plan"
)

// TestSharedWorkSums checks that the ranks of shared work get the sum over all of them, and that an error of one ends
// those that wait for it. Weights are loaded in as many parts as the plan's tensor group has ranks, or in one if the
// ranks live in other processes or the plan has no tensor group.
func TestSharedWorkSums(t *testing.T) {
	sharedWork(t, newEngine(t))
	far, err := NewPool(Config{NewOps: testOps, Processes: noHosts{}})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if n := loaders(t, far, "tensor=2"); n != 1 {
		t.Errorf("%d parts for ranks of other processes, want the encoder whole", n)
	}
}

// noHosts is a Hosts that is never started.
type noHosts struct{ Processes }

// loaders returns the number of parts in which a plan's weights are loaded.
func loaders(t *testing.T, e *Pool, text string) (n int) {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	err = e.Do(context.Background(), "load", func(l *Workspace) error {
		ops, err := l.Loaders(p)
		n = len(ops)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func sharedWork(t *testing.T, e *Pool) {
	t.Helper()
	for text, want := range map[string]int{"": 1, "ulysses=2": 1, "tensor=3,ulysses=2": 3} {
		if n := loaders(t, e, text); n != want {
			t.Errorf("%q: %d parts, want %d", text, n, want)
		}
	}
	const ranks = 3
	fault := errors.New("no")
	for _, faulty := range []int{-1, 1} {
		var got [ranks][2]float32
		err := e.Do(context.Background(), "sum", func(l *Workspace) error {
			return l.Shared("sum", ranks, func(s Share) error {
				if s.Rank == faulty {
					return fault
				}
				buf, err := s.Ops.Alloc(64)
				if err != nil {
					return err
				}
				defer s.Ops.Free(buf)
				x := engine.NewArena("sum", buf, 64).Alloc(engine.F32, 2)
				s.Ops.Upload(x, []float32{1, float32(10 * s.Rank)})
				s.Sum(x)
				return s.Ops.Download(got[s.Rank][:], x).Wait()
			})
		})
		if faulty >= 0 {
			if !errors.Is(err, fault) {
				t.Errorf("got error %v, want that of rank %d", err, faulty)
			}
			continue
		}
		if want := [2]float32{3, 30}; err != nil || got != [ranks][2]float32{want, want, want} {
			t.Errorf("sums %v and error %v, want %v thrice", got, err, want)
		}
	}
	if err := e.Do(context.Background(), "more", func(*Workspace) error { return nil }); err != nil {
		t.Errorf("work behind an error: %v", err)
	}
}
