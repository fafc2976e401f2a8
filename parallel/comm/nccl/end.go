package nccl

import (
	"fmt"
	"slices"
	"time"

	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// members is the state that the ends of a group share. The lock guards the fields from wires on.
type members struct {
	*comm.Rendezvous
	limit  time.Duration // limit of a wait
	ends   []*end        // by rank; nil: in another process
	shared bool          // some ranks are in other processes
	talk   *talk         // with those processes; nil: all ranks share this one
	wires  *wires        // nil: the group has one rank
	calls  map[int][]*comm.Call
	mail   comm.Mail[driver.Point] // notes: points at which the stream is done with a slot
}

// end is one rank's end. Only the rank's host uses it, except for Abort, Traffic and Waiting, and it waits for peers
// only until communicators are connected.
type end struct {
	comm.Seat
	group   *members
	stream  *cuda.Ops // the rank's stream
	async   *cuda.Ops // stream of collectives started by Begin; nil before the first
	in, out *cuda.Ops // streams of messages from the rank before and to the next; nil before the first
	sending []*side   // offers whose slots may still be in use
	issued  int       // number of collectives so far
}

// Abort implements comm.Comm. It also ends exchanges that run on the devices; their results are errors from then on.
func (e *end) Abort(cause error) { e.group.abort(cause) }

// abort ends the group with cause, unless it has ended before.
func (g *members) abort(cause error) {
	if !g.End(cause) {
		return
	}
	for _, e := range g.ends { // before any rank wakes up
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

// use makes the group exchange over w, unless it was aborted meanwhile.
func (g *members) use(w *wires) error {
	g.Locked(func() { g.wires = w })
	w.serve(g)
	if cause := g.Cause(); cause != nil {
		w.abort(cause)
		return fmt.Errorf("%s: %w", g.Name, cause)
	}
	return nil
}

// fail aborts the group with err, and panics with the cause of the first abort.
func (e *end) fail(err error) {
	e.group.abort(err)
	e.alive()
}

// alive panics with the cause if the group was aborted.
func (e *end) alive() {
	cause := e.Cause()
	if cause == nil {
		return
	}
	if failure, ok := cause.(*comm.Error); ok { //nolint:errorlint // the error itself, not one that it wraps
		panic(failure)
	}
	panic(&comm.Error{Text: fmt.Sprintf("%s: rank %d exchanges nothing any more", e.Name, e.Rank()), Cause: cause})
}

// compared runs f, which records a call and compares it with those of the peers, with the lock held. If f fails, so
// does the group.
func (e *end) compared(f func(g *members) error) {
	e.alive()
	var err error
	e.Locked(func() { err = f(e.group) })
	if err != nil {
		e.fail(err)
	}
}

// issue runs f, which enqueues something on a stream for a rank of c, and waits until it is enqueued. An error of the
// stream also ends the group, because the peers then miss what was not enqueued.
func (e *end) issue(what string, c communicators, rank int, on *cuda.Ops, f func() (bool, error)) {
	pending, err := f()
	if err == nil && pending {
		start := time.Now()
		e.SetWaiting(what)
		err = settle(c, rank, true, start.Add(e.group.limit), e.Cause)
		e.SetWaiting("")
		e.Spent(start)
	}
	if err == nil {
		err = on.Err()
	}
	if err != nil {
		e.fail(&comm.Error{Text: fmt.Sprintf("%s: rank %d in %s", e.Name, e.Rank(), what), Cause: err})
	}
}

// aside returns *s, a stream beside the rank's own, and makes it at first use.
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

// follow makes what is issued on s next wait for what was issued on other, a stream of the same device, so far.
func follow(s, other *cuda.Ops) {
	event := other.Record()
	s.After(event)
	other.Forget(event)
}

// note records a rank's part of a collective and compares the parts when those of all peers are there.
func (g *members) note(e *end, c *comm.Call) error {
	if err := c.Fits(g.Name, e.Rank(), len(g.ends)); err != nil {
		return err
	}
	if g.shared { // other processes do not report their calls
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
