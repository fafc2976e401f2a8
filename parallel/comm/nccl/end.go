package nccl

import (
	"fmt"
	"slices"
	"time"

	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// members is what the ends share.
type members struct {
	*comm.Rendezvous
	limit  time.Duration // of a wait
	ends   []*end        // by rank, nil: in another process
	shared bool          // some are
	talk   *talk         // with those; nil: all ranks share this process
	wires  *wires        // nil: one rank; it and all below are under the lock
	calls  map[int][]*comm.Call
	mail   comm.Mail[driver.Point] // notes are where the stream is done with a slot
}

// end is one rank's end. Its host uses it alone, but for Abort, Traffic and Waiting, and waits for peers only before
// communicators are connected.
type end struct {
	comm.Seat
	group   *members
	stream  *cuda.Ops // of the rank
	beside  *cuda.Ops // of collectives beside; nil before the first one
	in, out *cuda.Ops // of messages of the rank before and to the next one; nil before the first one
	sending []*side   // offers whose slots may still be read
	issued  int       // collectives
}

// Abort ends the exchanges of all ranks, also those that run on the devices; results are errors from then on.
func (e *end) Abort(cause error) { e.group.abort(cause) }

// abort ends the group with its first cause.
func (g *members) abort(cause error) {
	if !g.End(cause) {
		return
	}
	for _, e := range g.ends { // before anybody wakes up
		if e == nil {
			continue
		}
		e.stream.Break(&comm.Error{Text: fmt.Sprintf("%s: rank %d lost its peers", g.Name, e.Rank()), Cause: cause})
	}
	if g.talk != nil {
		g.talk.abort(cause)
	}
	var w *wires
	g.Locked(func() { w = g.wires })
	if w != nil {
		w.abort(cause)
	}
}

// use makes w what the group exchanges by, unless it was aborted meanwhile.
func (g *members) use(w *wires) error {
	g.Locked(func() { g.wires = w })
	w.serve(g)
	if cause := g.Cause(); cause != nil {
		w.abort(cause)
		return fmt.Errorf("%s: %w", g.Name, cause)
	}
	return nil
}

// fail aborts the group with err, unless it was aborted before, and panics with it, or with the first cause.
func (e *end) fail(err error) {
	e.group.abort(err)
	e.alive()
}

// alive panics with the first cause of a group that was aborted.
func (e *end) alive() {
	cause := e.Cause()
	if cause == nil {
		return
	}
	if own, ok := cause.(*comm.Error); ok { //nolint:errorlint // one that says so itself, not one inside another
		panic(own)
	}
	panic(&comm.Error{Text: fmt.Sprintf("%s: rank %d exchanges nothing any more", e.Name, e.Rank()), Cause: cause})
}

// compared runs f, which notes a call beside those of the peers, with the lock held, and fails with its error.
func (e *end) compared(f func(g *members) error) {
	e.alive()
	var err error
	e.Locked(func() { err = f(e.group) })
	if err != nil {
		e.fail(err)
	}
}

// issue runs f, which enqueues something on a stream by a rank of c, and waits until it is enqueued. The first error of
// the stream ends the group too: what is left out then is missing elsewhere.
func (e *end) issue(what string, c communicators, rank int, on *cuda.Ops, f func() (bool, error)) {
	pending, err := f()
	if err == nil && pending {
		start := time.Now()
		e.Stands(what)
		err = settle(c, rank, true, start.Add(e.group.limit), e.Cause)
		e.Stands("")
		e.Spent(start)
	}
	if err == nil {
		err = on.Err()
	}
	if err != nil {
		e.fail(&comm.Error{Text: fmt.Sprintf("%s: rank %d in %s", e.Name, e.Rank(), what), Cause: err})
	}
}

// aside makes sure that there is a stream beside the rank's, at first use.
func (e *end) aside(s **cuda.Ops) *cuda.Ops {
	if *s == nil {
		made, err := e.stream.Beside()
		if err != nil {
			e.fail(&comm.Error{Text: fmt.Sprintf("%s: rank %d has no stream for messages", e.Name, e.Rank()), Cause: err})
		}
		*s = made
	}
	return *s
}

// follow holds what is issued next on a stream back until another one of this rank's device has come to its end.
func follow(s, other *cuda.Ops) {
	here := other.Record()
	s.After(here)
	other.Forget(here)
}

// note adds a rank's part of a collective to those of its peers and compares when all are there.
func (g *members) note(e *end, c *comm.Call) error {
	if err := c.Fits(g.Name, e.Rank(), len(g.ends)); err != nil {
		return err
	}
	if g.shared { // who is elsewhere says nothing of its calls
		return nil
	}
	n := e.issued
	e.issued++
	if g.calls[n] == nil {
		g.calls[n] = make([]*comm.Call, len(g.ends))
	}
	calls := g.calls[n]
	if calls[e.Rank()] = c; slices.Contains(calls, nil) {
		return nil
	}
	delete(g.calls, n)
	return comm.Check(g.Name, calls)
}
