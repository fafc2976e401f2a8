package parallel

import (
	"context"
	"math"
	"slices"
	"sync"

	"patchbay/fault"
	"patchbay/parallel/plan"
)

// places hands out the places of a pool whose requests run side by side, in the order in which the requests came. It
// is safe for concurrent use.
type places struct {
	all     int
	mu      sync.Mutex
	free    []int      // ascending
	due     int        // requests that want places, now or soon: a Turn counts from Enter on
	queue   []*byte    // waiting calls of take, oldest first; pointers serve as identities
	changed *sync.Cond // signals a change of free, due or queue
}

func newPlaces(n int) *places {
	s := &places{all: n}
	s.changed = sync.NewCond(&s.mu)
	for i := range n {
		s.free = append(s.free, i)
	}
	return s
}

// take waits for the caller's turn and for size to return a number of places, which it then takes. size gets the number
// of requests that want places and the number of free places; 0 means to wait until one of them changes. turn may be
// nil. take returns an error if ctx is done first.
func (s *places) take(ctx context.Context, turn *Turn, size func(due, free int) int) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	me := new(byte)
	s.queue = append(s.queue, me)
	extra := turn == nil || turn.counted // Enter counts a turn only until it gets its first places
	if extra {
		s.due++
		s.changed.Broadcast()
	}
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})()
	leave := func() {
		s.queue = slices.DeleteFunc(s.queue, func(w *byte) bool { return w == me })
		s.changed.Broadcast()
	}
	for ctx.Err() == nil {
		due, free := s.due, len(s.free)
		if s.queue[0] == me && free > 0 {
			s.mu.Unlock()
			n := size(due, free) // takes a while if it has to search for a plan
			s.mu.Lock()
			if due != s.due || free != len(s.free) {
				continue
			}
			if n > 0 && n <= free {
				got := slices.Clone(s.free[:n])
				s.free = slices.Delete(s.free, 0, n)
				s.due--
				if !extra {
					turn.counted = true
				}
				leave()
				return got, nil
			}
		}
		s.changed.Wait()
	}
	if extra {
		s.due--
	}
	leave()
	return nil, fault.Cancel(ctx.Err())
}

func (s *places) give(back []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, back...)
	slices.Sort(s.free)
	s.changed.Broadcast()
}

// ShareSizes divides the free devices of one host among waiting jobs, as evenly as possible, so that the last job ends
// soonest. It returns the sizes of the groups; jobs without one wait. seconds returns the time of a job on a number of
// devices, +Inf if it does not fit. Many jobs get a device each, since no plan's speedup exceeds its number of devices.
// A lone job gets all devices, and so do, one after the other, a few jobs that do not share evenly.
func ShareSizes(waiting, free int, seconds func(devices int) float64) []int {
	var out []int
	if n, _ := soonest(waiting, free, seconds); n > 0 {
		for _, r := range plan.Balanced(free, n) {
			out = append(out, r.Len())
		}
	}
	return out
}

// soonest returns the number of groups to begin with, 0 if a job fits none, and when the last job ends if that many run
// in every round except the last, whose jobs are divided anew.
func soonest(waiting, free int, seconds func(devices int) float64) (groups int, last float64) {
	if waiting == 0 {
		return 0, 0
	}
	last = math.Inf(1)
	for n := 1; n <= min(waiting, free); n++ {
		_, rest := soonest(waiting%n, free, seconds)
		if end := float64(waiting/n)*seconds(free/n) + rest; end < last {
			groups, last = n, end
		}
	}
	return groups, last
}
