package comm

import (
	"fmt"
	"sync"
	"time"

	"patchbay/engine"
)

// Rendezvous is where the ranks of a group in one process wait for each other on the host: one lock, one cause that
// ends every wait, and one deadline for each wait.
type Rendezvous struct {
	Name     string // of the group, for errors
	deadline time.Duration
	block    func(ready func() bool) // replaces waiting on cond, see Local.Block
	standing func() string

	mu      sync.Mutex
	cond    *sync.Cond
	cause   error
	onAbort func(error) // called with the cause, see OnAbort
	waits   []string    // what each rank is waiting for
}

// NewRendezvous makes the Rendezvous of a group of size ranks. standing lists which ranks are waiting where, for the
// error of a wait that exceeds the deadline, and is called with the lock held.
func NewRendezvous(g Group, size int, standing func() string) *Rendezvous {
	m := &Rendezvous{Name: g.Name, deadline: g.Deadline, standing: standing, waits: make([]string, size)}
	m.cond = sync.NewCond(&m.mu)
	return m
}

// Locked runs f with the lock held, even if the group has ended.
func (m *Rendezvous) Locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// WakeAll makes all waiters check their conditions again. The caller must hold the lock.
func (m *Rendezvous) WakeAll() { m.cond.Broadcast() }

// OnAbort registers f to be called with the cause, in a goroutine of its own, once the group has ended. It replaces an
// earlier f.
func (m *Rendezvous) OnAbort(f func(cause error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onAbort = f
	if m.cause != nil {
		go f(m.cause)
	}
}

// Errorf returns an error with the group's name.
func (m *Rendezvous) Errorf(format string, args ...any) *Error {
	return &Error{Text: m.Name + ": " + fmt.Sprintf(format, args...)}
}

// Cause returns the error that the group has ended with, nil if it has not ended.
func (m *Rendezvous) Cause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// End ends all waits with cause and reports whether the group had not ended before: only the first cause counts.
func (m *Rendezvous) End(cause error) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end(cause)
}

// end is End for callers that hold the lock.
func (m *Rendezvous) end(cause error) (first bool) {
	if first = m.cause == nil; first {
		m.cause = cause
		if m.onAbort != nil {
			go m.onAbort(cause)
		}
	}
	m.WakeAll()
	return first
}

// Seat is one rank's place at a Rendezvous and its traffic. The ends of all transports embed it.
type Seat struct {
	*Rendezvous
	rank    int
	traffic Traffic // guarded by mu
}

// NewSeat returns the Seat of a rank.
func NewSeat(at *Rendezvous, rank int) Seat { return Seat{Rendezvous: at, rank: rank} }

func (s *Seat) Rank() int { return s.rank }

func (s *Seat) Size() int { return len(s.waits) }

func (s *Seat) Abort(cause error) { s.End(cause) }

func (s *Seat) Waiting() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waits[s.rank]
}

// SetWaiting records what the rank waits for without using Wait, "" when it no longer does.
func (s *Seat) SetWaiting(what string) { s.Locked(func() { s.waits[s.rank] = what }) }

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

// Sent counts a call that sent that many elements to others.
func (s *Seat) Sent(elements int, d engine.DType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traffic.Sent(elements, d)
}

// Spent counts the time since start as waiting.
func (s *Seat) Spent(start time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traffic.Wait += time.Since(start)
}

// Do runs f with the lock held. If f fails, its error ends the group and Do panics with it, as methods of Comm do. If
// the group has already ended, Do panics without running f.
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

// Wait blocks until ready returns true. The caller must hold the lock, and ready is called with it. Wait returns an
// *Error when the group ends or the deadline passes. what names what the rank waits for.
func (s *Seat) Wait(what string, ready func() bool) error {
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
				s.WakeAll()
			})
		})
		defer timer.Stop()
	}
	for s.cause == nil && !ready() {
		if late {
			return s.Errorf("rank %d waited %v for %s; waiting: %s", s.rank, s.deadline, what, s.standing())
		}
		s.cond.Wait()
	}
	if s.cause != nil {
		return &Error{Text: fmt.Sprintf("%s: rank %d stopped waiting for %s", s.Name, s.rank, what), Cause: s.cause}
	}
	return nil
}
