// Package deferred is a comm.Transport for ranks whose Ops are streams of one engine/deferred Device: exchanges are
// queued with the calls of their rank and run as late as the host's waits allow, in an order that the device chooses.
// It is a test double for asynchronous devices: code that reads before a wait, sends from memory that is overwritten,
// or reads another rank's memory before it is written gets different numbers here.
package deferred

import (
	"fmt"
	"slices"
	"sync"

	"patchbay/engine"
	late "patchbay/engine/deferred"
	"patchbay/parallel/comm"
)

// Transport connects Ops that are *late.Ops of one device.
type Transport struct{}

// Connect implements comm.Transport. It ignores the deadline: a call whose peer never issues its part waits until the
// group is aborted.
func (Transport) Connect(of comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	g := &group{name: of.Name, rounds: map[int]*round{}, ways: map[wayKey]*way{}}
	out := make([]comm.Comm, len(ops))
	for r, o := range ops {
		stream, ok := o.(*late.Ops)
		if !ok {
			return nil, fmt.Errorf("%s: rank %d runs on %s, which is no stream of a deferred device", of.Name, r, o.Name())
		}
		e := &end{
			group: g, rank: r, stream: stream.Stream, outgoing: map[int]*late.Stream{},
			incoming: map[int]*late.Stream{},
		}
		g.ends = append(g.ends, e)
		out[r] = e
	}
	g.device = g.ends[0].stream.Device()
	return out, nil
}

// Interruptible returns false, as for devices whose queued calls cannot be taken back.
func (Transport) Interruptible() bool { return false }

// group is the state that the ends share. The device's lock guards it.
type group struct {
	name   string
	device *late.Device
	ends   []*end
	rounds map[int]*round
	ways   map[wayKey]*way
	cause  error
}

// round is one collective.
type round struct {
	calls   []*comm.Call
	arrived int
	done    bool
}

// wayKey names the messages of one kind from one rank to another.
type wayKey struct {
	from, to int
	slots    bool // Offer and Post, not SendRecv
}

// side is one side of a message that has been issued.
type side struct {
	comm.Message
	done bool
}

// way holds messages in order: those sent but not received, and the receives that wait for one.
type way struct{ sent, wanted []*side }

type end struct {
	group              *group
	rank               int
	stream             *late.Stream         // calls of the rank's Ops
	outgoing, incoming map[int]*late.Stream // of Offer and Post, by peer
	async              *late.Stream         // of Begin; nil before the first
	sending, posted    []message
	fetched            late.Event
	issued             int // collectives so far

	mu      sync.Mutex
	traffic comm.Traffic
}

// message is a slot on its way to or from a peer.
type message struct {
	peer int
	slot engine.Tensor
	over late.Event
}

func (e *end) Rank() int { return e.rank }
func (e *end) Size() int { return len(e.group.ends) }

// Waiting returns "": the host does not wait in exchanges.
func (e *end) Waiting() string { return "" }

func (e *end) Traffic() comm.Traffic {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.traffic
}

func (e *end) count(elements int, d engine.DType) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.traffic.Sent(elements, d)
}

// Abort makes all calls of the group end with cause.
func (e *end) Abort(cause error) {
	e.group.device.Locked(func() {
		if e.group.cause == nil {
			e.group.cause = cause
		}
	})
}

// issue panics if the group was aborted.
func (e *end) issue() {
	var cause error
	e.group.device.Locked(func() { cause = e.group.cause })
	if cause != nil {
		panic(&comm.Error{Text: fmt.Sprintf("%s: rank %d stopped", e.group.name, e.rank), Cause: cause})
	}
}

// push queues a call on a stream. Once the group has failed, the call completes and fails the stream.
func (e *end) push(s *late.Stream, c late.Call) late.Event {
	return s.Push(func() (bool, []*late.Stream) {
		var wants []*late.Stream
		if e.group.cause == nil {
			var done bool
			if done, wants = c(); done {
				return true, nil
			}
		}
		if cause := e.group.cause; cause != nil {
			s.Fail(&comm.Error{Text: fmt.Sprintf("%s: rank %d stopped", e.group.name, e.rank), Cause: cause})
			return true, nil
		}
		return false, wants
	})
}

// fail makes all calls of the group end with err. The device must be locked.
func (g *group) fail(err error) (bool, []*late.Stream) {
	if g.cause == nil {
		g.cause = err
	}
	return false, nil
}

// collective queues this rank's part of a collective on s.
func (e *end) collective(s *late.Stream, c *comm.Call) late.Event {
	e.issue()
	g, n := e.group, e.issued
	e.issued++
	e.count(c.Sent(e.rank, e.Size()), c.Src.DType)
	return e.push(s, func() (bool, []*late.Stream) { return g.meet(n, e, c) })
}

// meet polls collective n of the group for a rank. The last rank to arrive moves all data.
func (g *group) meet(n int, e *end, c *comm.Call) (bool, []*late.Stream) {
	r := g.rounds[n]
	if r == nil {
		r = &round{calls: make([]*comm.Call, len(g.ends))}
		g.rounds[n] = r
	}
	if r.calls[e.rank] == nil {
		r.calls[e.rank] = c
		r.arrived++
	}
	if r.done {
		return true, nil
	}
	if r.arrived < len(g.ends) {
		var wants []*late.Stream
		for i, other := range g.ends {
			if r.calls[i] == nil {
				wants = append(wants, other.streams()...)
			}
		}
		return false, wants
	}
	if err := comm.Check(g.name, r.calls); err != nil {
		return g.fail(err)
	}
	var ends []func()
	for i, c := range r.calls {
		ends = append(ends, c.Transfer(i, r.calls))
	}
	for _, f := range ends {
		f()
	}
	r.done = true
	return true, nil
}

// streams returns the rank's streams that issue collectives. The device must be locked.
func (e *end) streams() []*late.Stream {
	out := []*late.Stream{e.stream}
	if e.async != nil {
		out = append(out, e.async)
	}
	return out
}

func (e *end) Run(c *comm.Call) { e.collective(e.stream, c) }

// Begin implements comm.Comm on a stream of its own.
func (e *end) Begin(c *comm.Call) {
	if e.async == nil {
		s := e.group.device.Stream()
		e.group.device.Locked(func() { e.async = s })
	}
	e.async.After(e.stream.Record())
	e.fetched = e.collective(e.async, c)
}

func (e *end) Fetched() { e.stream.After(e.fetched) }

func (e *end) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	e.issue()
	g := e.group
	var parts []late.Call
	if to >= 0 {
		parts = append(parts, g.move(wayKey{e.rank, to, false}, true, comm.NewMessage(src), g.ends[to].stream))
		e.count(src.Len(), src.DType)
	}
	if from >= 0 {
		parts = append(parts, g.move(wayKey{from, e.rank, false}, false, comm.NewMessage(dst), g.ends[from].stream))
	}
	e.push(e.stream, func() (bool, []*late.Stream) {
		done, wants := true, []*late.Stream(nil)
		for _, p := range parts {
			over, more := p()
			done, wants = done && over, append(wants, more...)
		}
		return done, wants
	})
}

// move returns one side of a message as a call that is done once the message has moved. peer is the stream of the
// other side.
func (g *group) move(key wayKey, sends bool, m comm.Message, peer *late.Stream) late.Call {
	half, began := &side{Message: m}, false
	return func() (bool, []*late.Stream) {
		w := g.ways[key]
		if w == nil {
			w = &way{}
			g.ways[key] = w
		}
		if !began && sends {
			w.sent = append(w.sent, half)
		} else if !began {
			w.wanted = append(w.wanted, half)
		}
		began = true
		for len(w.sent) > 0 && len(w.wanted) > 0 {
			if err := deliver(g.name, w.wanted[0].Message, key.to, w.sent[0].Message, key.from); err != nil {
				return g.fail(err)
			}
			w.sent[0].done, w.wanted[0].done = true, true
			w.sent, w.wanted = w.sent[1:], w.wanted[1:]
		}
		if half.done {
			return true, nil
		}
		return false, []*late.Stream{peer}
	}
}

// toward returns the stream of messages with a peer, creating it on first use. Both sides call it.
func (e *end) toward(streams map[int]*late.Stream, peer int) *late.Stream {
	var s *late.Stream
	e.group.device.Locked(func() { s = streams[peer] })
	if s == nil {
		made := e.group.device.Stream()
		e.group.device.Locked(func() {
			if streams[peer] == nil { // the peer may have been faster: two streams keep no order
				streams[peer] = made
			}
			s = streams[peer]
		})
	}
	return s
}

func (e *end) Offer(slot, src engine.Tensor, to int) {
	e.issue()
	e.sending = slices.DeleteFunc(e.sending, func(m message) bool {
		busy := engine.Overlaps(m.slot, slot)
		if busy {
			e.stream.After(m.over)
		}
		return busy
	})
	m := comm.NewMessage(src)
	filled := e.push(e.stream, func() (bool, []*late.Stream) {
		if err := deliver(e.group.name, comm.Message{Tensor: slot, Site: m.Site}, e.rank, m, e.rank); err != nil {
			return e.group.fail(err)
		}
		return true, nil
	})
	out, peer := e.toward(e.outgoing, to), e.group.ends[to]
	out.After(filled)
	sent := e.push(out, e.group.move(wayKey{e.rank, to, true}, true, comm.Message{Tensor: slot, Site: m.Site},
		peer.toward(peer.incoming, e.rank)))
	e.sending = append(e.sending, message{to, slot, sent})
	e.count(src.Len(), src.DType)
}

func (e *end) Post(slot engine.Tensor, from int) {
	e.issue()
	in := e.toward(e.incoming, from)
	in.After(e.stream.Record())
	peer := e.group.ends[from]
	arrived := e.push(in, e.group.move(wayKey{from, e.rank, true}, false, comm.NewMessage(slot),
		peer.toward(peer.outgoing, e.rank)))
	e.posted = append(e.posted, message{from, slot, arrived})
}

func (e *end) Await(dst engine.Tensor, from int) {
	e.issue()
	m := comm.NewMessage(dst)
	i := slices.IndexFunc(e.posted, func(m message) bool { return m.peer == from })
	if i < 0 {
		panic(&comm.Error{Text: fmt.Sprintf("%s: rank %d awaits a message of rank %d and has posted no memory for it",
			e.group.name, e.rank, from)})
	}
	p := e.posted[i]
	e.posted = slices.Delete(e.posted, i, i+1)
	e.stream.After(p.over)
	e.push(e.stream, func() (bool, []*late.Stream) {
		if err := deliver(e.group.name, m, e.rank, comm.Message{Tensor: p.slot, Site: m.Site}, e.rank); err != nil {
			return e.group.fail(err)
		}
		return true, nil
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.traffic.Posted++
}

// deliver copies a message. It returns an error if its sides disagree.
func deliver(name string, dst comm.Message, to int, src comm.Message, from int) error {
	if err := comm.Agree(name, dst, to, src, from); err != nil {
		return err
	}
	n := src.Tensor.Len()
	copy(comm.HostBytes(dst.Tensor, 0, n), comm.HostBytes(src.Tensor, 0, n))
	return nil
}
