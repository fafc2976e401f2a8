package comm

import (
	"fmt"
	"sync"
	"time"
)

// Rendezvous is where the ranks of a group that share a process wait for each other on the host: one lock, one cause
// that ends every wait, and a deadline for each of them.
type Rendezvous struct {
	name     string // axis, for errors
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
	m := &Rendezvous{name: g.Name, deadline: g.Deadline, standing: standing, waits: make([]string, size)}
	m.cond = sync.NewCond(&m.mu)
	return m
}

// Locked runs f with the lock held and panics with its error, as methods of Comm do. In a group that was aborted it
// still runs f: what waits there finds out.
func (m *Rendezvous) Locked(f func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := f(); err != nil {
		panic(err)
	}
}

// Wait blocks until ready holds; the lock is held. It returns an *Error when the group is aborted or the deadline
// passes. what says what rank waits for.
func (m *Rendezvous) Wait(rank int, what string, ready func() bool) error {
	return m.WaitBy(nil, rank, what, ready)
}

// WaitBy is Wait by another sleep than that of the condition, if not nil: it is called with the lock held, gives it up
// meanwhile, and ends when what OnWake has set is called, or earlier. false: it cannot sleep, and has not given it up.
func (m *Rendezvous) WaitBy(sleep func(sync.Locker) bool, rank int, what string, ready func() bool) error {
	if m.cause == nil && ready() {
		return nil
	}
	m.waits[rank] = what
	defer func() { m.waits[rank] = "" }()
	if m.block != nil {
		m.mu.Unlock()
		m.block(func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.cause != nil || ready()
		})
		m.mu.Lock()
	}
	late := false
	if m.deadline > 0 && m.block == nil {
		timer := time.AfterFunc(m.deadline, func() {
			m.mu.Lock()
			late = true
			m.Moved()
			m.mu.Unlock()
		})
		defer timer.Stop()
	}
	for m.cause == nil && !ready() {
		if late {
			return m.Fail(&Error{Text: fmt.Sprintf("%s: rank %d waited %v for %s; waiting: %s", m.name, rank, m.deadline, what,
				m.standing())})
		}
		if sleep == nil || !sleep(&m.mu) {
			m.cond.Wait()
		}
	}
	if m.cause != nil {
		return &Error{Text: fmt.Sprintf("%s: rank %d stopped waiting for %s", m.name, rank, what), Cause: m.cause}
	}
	return nil
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

// Fail aborts the group with err, unless it was aborted before, and returns err; the lock is held.
func (m *Rendezvous) Fail(err error) error {
	if m.cause == nil {
		m.cause = err
		if m.told != nil {
			go m.told(err)
		}
	}
	m.Moved()
	return err
}

// OnAbort has f called once the group is aborted, with the cause, in a goroutine of its own. There is one such f.
func (m *Rendezvous) OnAbort(f func(cause error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = f
	if m.cause != nil {
		go f(m.cause)
	}
}

// Disagree aborts the group because ranks do not use the same calls; the lock is held.
func (m *Rendezvous) Disagree(format string, args ...any) error {
	return m.Fail(&Error{Text: m.name + ": " + fmt.Sprintf(format, args...)})
}

// Cause returns what the group was aborted with, nil if it was not; the lock is held.
func (m *Rendezvous) Cause() error { return m.cause }

// Abort ends all waits with cause, as Comm.Abort does.
func (m *Rendezvous) Abort(cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.Fail(cause)
}

// Waiting says what a rank waits for, "" if it does not.
func (m *Rendezvous) Waiting(rank int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waits[rank]
}
