package comm

import (
	"fmt"
	"sync"
	"time"

	"patchbay/engine"
)

// Rendezvous is where the ranks of a group that share a process wait for each other on the host: one lock, one cause
// that ends every wait, and a deadline for each of them.
type Rendezvous struct {
	Name     string // of the group, for errors
	deadline time.Duration
	block    func(ready func() bool) // waits in place of the condition, see Local.Block
	standing func() string

	mu    sync.Mutex
	cond  *sync.Cond
	cause error
	told  func(error) // of the cause
	woken func()      // wakes who does not wait by the condition
	waits []string    // by rank: what it waits for
}

// NewRendezvous makes the meeting place of a group of size ranks. standing says who waits where, for the error of a
// wait that was too long, and is called with the lock held.
func NewRendezvous(g Group, size int, standing func() string) *Rendezvous {
	m := &Rendezvous{Name: g.Name, deadline: g.Deadline, standing: standing, waits: make([]string, size)}
	m.cond = sync.NewCond(&m.mu)
	return m
}

// Locked runs f with the lock held, also in a group that has ended.
func (m *Rendezvous) Locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// Moved wakes everybody who waits, to look again; the lock is held.
func (m *Rendezvous) Moved() {
	m.cond.Broadcast()
	if m.woken != nil {
		m.woken()
	}
}

// OnWake has f called, with the lock held, whenever those who wait are to look again. Call it before anybody waits.
func (m *Rendezvous) OnWake(f func()) { m.woken = f }

// OnAbort has f called once the group has ended, with the cause, in a goroutine of its own. There is one such f.
func (m *Rendezvous) OnAbort(f func(cause error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = f
	if m.cause != nil {
		go f(m.cause)
	}
}

// Errorf is an error of the group.
func (m *Rendezvous) Errorf(format string, args ...any) *Error {
	return &Error{Text: m.Name + ": " + fmt.Sprintf(format, args...)}
}

// Cause returns what the group has ended with, nil if it has not.
func (m *Rendezvous) Cause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// End ends all waits with cause, and reports whether the group had not ended before: the first cause stays.
func (m *Rendezvous) End(cause error) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end(cause)
}

// end is End; the lock is held.
func (m *Rendezvous) end(cause error) (first bool) {
	if first = m.cause == nil; first {
		m.cause = cause
		if m.told != nil {
			go m.told(cause)
		}
	}
	m.Moved()
	return first
}

// Seat is the place of one rank at a Rendezvous, and what it has sent: what the ends of its group have in common.
type Seat struct {
	*Rendezvous
	rank    int
	traffic Traffic // under the lock
}

// NewSeat is the place of a rank.
func NewSeat(at *Rendezvous, rank int) Seat { return Seat{Rendezvous: at, rank: rank} }

// Rank implements Comm.
func (s *Seat) Rank() int { return s.rank }

// Size implements Comm.
func (s *Seat) Size() int { return len(s.waits) }

// Abort implements Comm.
func (s *Seat) Abort(cause error) { s.End(cause) }

// Waiting implements Comm.
func (s *Seat) Waiting() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waits[s.rank]
}

// Stands notes what the rank waits for in another way than Wait, "" if for nothing any more.
func (s *Seat) Stands(what string) { s.Locked(func() { s.waits[s.rank] = what }) }

// Traffic implements Comm.
func (s *Seat) Traffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traffic
}

// Took counts a message received by Await.
func (s *Seat) Took() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traffic.Posted++
}

// Sent counts a call that sent so many elements to others.
func (s *Seat) Sent(elements int, d engine.DType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traffic.Sent(elements, d)
}

// Spent counts the time since start as spent waiting.
func (s *Seat) Spent(start time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traffic.Wait += time.Since(start)
}

// Do runs f with the lock held. Its error ends the group and is what Do panics with, as methods of Comm do; in a group
// that has ended it panics at once.
func (s *Seat) Do(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		panic(&Error{Text: fmt.Sprintf("%s: rank %d stopped", s.Name, s.rank), Cause: s.cause})
	}
	if err := f(); err != nil {
		s.end(err)
		panic(err)
	}
}

// Wait blocks until ready holds; the lock is held. It returns an *Error when the group ends or the deadline passes.
// what says what the rank waits for.
func (s *Seat) Wait(what string, ready func() bool) error { return s.WaitBy(nil, what, ready) }

// WaitBy is Wait by another sleep than that of the condition, if not nil: it is called with the lock held, gives it up
// meanwhile, and ends when what OnWake has set is called, or earlier. false: it cannot sleep, and has not given it up.
func (s *Seat) WaitBy(sleep func(sync.Locker) bool, what string, ready func() bool) error {
	if s.cause == nil && ready() {
		return nil
	}
	s.waits[s.rank] = what
	defer func() { s.waits[s.rank] = "" }()
	if s.block != nil {
		s.mu.Unlock()
		s.block(func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.cause != nil || ready()
		})
		s.mu.Lock()
	}
	late := false
	if s.deadline > 0 && s.block == nil {
		timer := time.AfterFunc(s.deadline, func() {
			s.Locked(func() {
				late = true
				s.Moved()
			})
		})
		defer timer.Stop()
	}
	for s.cause == nil && !ready() {
		if late {
			return s.Errorf("rank %d waited %v for %s; waiting: %s", s.rank, s.deadline, what, s.standing())
		}
		if sleep == nil || !sleep(&s.mu) {
			s.cond.Wait()
		}
	}
	if s.cause != nil {
		return &Error{Text: fmt.Sprintf("%s: rank %d stopped waiting for %s", s.Name, s.rank, what), Cause: s.cause}
	}
	return nil
}
