package nccl

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// group is what the ends share.
type group struct {
	name     string
	deadline time.Duration
	ends     []*end // by rank, nil: in another process
	shared   bool   // some are
	talk     *talk  // with those; nil: all ranks share this process
	wires    *wires // nil: one rank

	mu    sync.Mutex // of all below
	calls map[int][]*comm.Call
	ways  map[[2]int]*way
	waits []string // by rank: what its host waits for
	cause error
}

// end is one rank's end. Its host uses it alone, but for Abort, Traffic and Waiting.
type end struct {
	group   *group
	rank    int
	ops     *cuda.Ops      // of the rank
	stream  *driver.Stream // its own
	beside  *driver.Stream // of prefetches; nil before the first one
	in, out *driver.Stream // of messages of the rank before and to the next one; nil before the first one
	sending []sent         // offers whose slots may still be read
	posted  []sent         // slots that are filled, oldest first
	issued  int            // collectives

	mu      sync.Mutex
	traffic comm.Traffic
}

// Rank returns this end's number in the group.
func (e *end) Rank() int { return e.rank }

// Size returns the number of ranks in the group.
func (e *end) Size() int { return len(e.group.ends) }

// Waiting says what the host of this rank waits for: for peers only before communicators are connected.
func (e *end) Waiting() string {
	e.group.mu.Lock()
	defer e.group.mu.Unlock()
	return e.group.waits[e.rank]
}

// Abort ends the exchanges of all ranks, also those that run on the devices; results are errors from then on.
func (e *end) Abort(cause error) { e.group.abort(cause) }

// Traffic returns what this rank has sent so far.
func (e *end) Traffic() comm.Traffic {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.traffic
}

// count changes the traffic.
func (e *end) count(f func(*comm.Traffic)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(&e.traffic)
}

// abort ends the group with its first cause.
func (g *group) abort(cause error) {
	g.mu.Lock()
	first := g.cause == nil
	if first {
		g.cause = cause
	}
	g.mu.Unlock()
	if !first {
		return
	}
	for _, e := range g.ends { // before anybody wakes up
		if e == nil {
			continue
		}
		e.stream.Break(&comm.Error{Text: fmt.Sprintf("%s: rank %d lost its peers", g.name, e.rank), Cause: cause})
	}
	if g.talk != nil {
		g.talk.abort(cause)
	}
	g.mu.Lock()
	w := g.wires
	g.mu.Unlock()
	if w != nil {
		w.abort(cause)
	}
}

// use makes w what the group exchanges by, unless it was aborted meanwhile.
func (g *group) use(w *wires) error {
	g.mu.Lock()
	g.wires = w
	cause := g.cause
	g.mu.Unlock()
	w.serve(g)
	if cause != nil {
		w.abort(cause)
		return fmt.Errorf("%s: %w", g.name, cause)
	}
	return nil
}

// broken is what the group was aborted with, nil if it was not.
func (g *group) broken() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cause
}

// fail aborts the group with err, unless it was aborted before, and panics with it, or with the first cause.
func (e *end) fail(err error) {
	e.group.abort(err)
	e.alive()
}

// alive panics with the first cause of a group that was aborted.
func (e *end) alive() {
	g := e.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == nil {
		return
	}
	if own, ok := g.cause.(*comm.Error); ok { //nolint:errorlint // one that says so itself, not one inside another
		panic(own)
	}
	panic(&comm.Error{Text: fmt.Sprintf("%s: rank %d exchanges nothing any more", g.name, e.rank), Cause: g.cause})
}

// compared runs f, which notes a call beside those of the peers, and fails with its error.
func (e *end) compared(f func(g *group) error) {
	e.alive()
	e.group.mu.Lock()
	err := f(e.group)
	e.group.mu.Unlock()
	if err != nil {
		e.fail(err)
	}
}

// issue runs f, which enqueues something on a stream by a rank of c, and waits until it is enqueued. The first error of
// the stream ends the group too: what is left out then is missing elsewhere.
func (e *end) issue(what string, c communicators, rank int, on *driver.Stream, f func() (bool, error)) {
	pending, err := f()
	if err == nil && pending {
		start := time.Now()
		e.waits(what)
		limit := e.group.deadline
		if limit == 0 {
			limit = patience
		}
		err = settle(c, rank, true, start.Add(limit), e.group.broken)
		e.waits("")
		e.count(func(t *comm.Traffic) { t.Wait += time.Since(start) })
	}
	if err == nil {
		err = on.Err()
	}
	if err != nil {
		e.fail(&comm.Error{Text: fmt.Sprintf("%s: rank %d in %s", e.group.name, e.rank, what), Cause: err})
	}
}

func (e *end) waits(what string) {
	e.group.mu.Lock()
	defer e.group.mu.Unlock()
	e.group.waits[e.rank] = what
}

// aside makes sure that there is a stream beside the rank's, at first use.
func (e *end) aside(s **driver.Stream) *driver.Stream {
	if *s == nil {
		made, err := e.ops.Beside()
		if err != nil {
			e.fail(&comm.Error{Text: fmt.Sprintf("%s: rank %d has no stream for messages", e.group.name, e.rank), Cause: err})
		}
		*s = made.Stream
	}
	return *s
}

// follow holds what is issued next on a stream back until another one of this rank's device has come to its end.
func follow(s, other *driver.Stream) {
	here := other.Record()
	s.After(here)
	other.Forget(here)
}

// note adds a rank's part of a collective to those of its peers and compares when all are there.
func (g *group) note(e *end, c *comm.Call) error {
	if err := c.Sizes(len(g.ends)); err != nil {
		return &comm.Error{Text: fmt.Sprintf("%s: rank %d at %s: %v", g.name, e.rank, c.At(), err)}
	}
	if g.shared { // who is elsewhere says nothing of its calls
		return nil
	}
	n := e.issued
	e.issued++
	if g.calls[n] == nil {
		g.calls[n] = make([]*comm.Call, len(g.ends))
	}
	g.calls[n][e.rank] = c
	if slices.Contains(g.calls[n], nil) {
		return nil
	}
	calls := g.calls[n]
	delete(g.calls, n)
	return comm.Check(g.name, calls)
}
