package localcuda

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// side is one side of a message: ready is where its stream had come when it was issued, moved where the copy is done.
type side struct {
	comm.Message
	ready, moved driver.Point
	met          bool // the copy is enqueued
}

// way is the messages from one rank to another: plain ones, of which each side has one at a time, and those in slots.
type way struct {
	sent, wanted *side
	offers       []*side // not met, oldest first
	posts        []*side // not awaited, oldest first
}

// way returns the messages from one rank to another; the lock is held.
func (g *group) way(from, to int) *way {
	key := [2]int{from, to}
	if g.ways[key] == nil {
		g.ways[key] = &way{}
	}
	return g.ways[key]
}

// empty returns the oldest post that has not met its offer, nil if there is none.
func (w *way) empty() *side {
	for _, p := range w.posts {
		if !p.met {
			return p
		}
	}
	return nil
}

// SendRecv implements comm.Comm: the stream of the receiver copies, that of the sender goes on afterwards.
func (e *end) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	out, in := &side{Message: comm.NewMessage(src)}, &side{Message: comm.NewMessage(dst)}
	e.locked(func() error {
		g := e.group
		if to >= 0 {
			w := g.way(e.rank, to)
			if p := w.empty(); p != nil {
				return g.Disagree("rank %d sends to rank %d at %s, which has posted memory at %s: that takes an Offer", e.rank, to,
					out.At(), p.At())
			}
			w.sent, out.ready = out, e.stream.Record()
			e.traffic.Sent(src.Len(), src.DType)
			if err := g.deliver(w, e.rank, to); err != nil {
				return err
			}
		}
		if from >= 0 {
			w := g.way(from, e.rank)
			if len(w.posts) > 0 {
				return g.Disagree("rank %d receives from rank %d at %s and has posted memory for it before", e.rank, from, in.At())
			}
			w.wanted, in.ready = in, e.stream.Record()
			if err := g.deliver(w, from, e.rank); err != nil {
				return err
			}
			if err := g.Wait(e.rank, fmt.Sprintf("a send of rank %d", from), func() bool { return in.met }); err != nil {
				return err
			}
		}
		if to >= 0 {
			if err := g.Wait(e.rank, fmt.Sprintf("rank %d to receive", to), func() bool { return out.met }); err != nil {
				return err
			}
			e.stream.After(out.moved)
			g.streams[to].Forget(out.moved)
		}
		return nil
	})
}

// deliver enqueues a plain message that both sides have come for: the receiver waits, and so does its stream.
func (g *group) deliver(w *way, from, to int) error {
	if w.sent == nil || w.wanted == nil || g.Cause() != nil {
		return nil
	}
	out, in, s := w.sent, w.wanted, g.streams[to]
	if err := g.carry(s, out, from, in, to); err != nil {
		return err
	}
	out.moved = s.Record()
	w.sent, w.wanted = nil, nil
	return g.failed(s)
}

// carry enqueues a copy between two sides that are there.
func (g *group) carry(s *cuda.Ops, out *side, from int, in *side, to int) error {
	if err := comm.Agree(g.name, in.Message, to, out.Message, from); err != nil {
		return g.Fail(err)
	}
	s.After(out.ready)
	s.After(in.ready)
	s.Take(in.Tensor, out.Tensor, g.streams[from].Stream)
	g.streams[from].Forget(out.ready)
	g.streams[to].Forget(in.ready)
	out.met, in.met = true, true
	g.Moved()
	return nil
}

// slide enqueues the messages of a way for which both slots are there, on a stream of the receiver that is for them
// alone; the lock is held.
func (g *group) slide(w *way, from, to int) error {
	e := g.ends[to]
	for len(w.offers) > 0 && w.empty() != nil && g.Cause() == nil {
		out, in, s := w.offers[0], w.empty(), e.incoming[from]
		if err := g.carry(s, out, from, in, to); err != nil {
			return err
		}
		out.moved, in.moved = s.Record(), s.Record()
		w.offers = w.offers[1:]
		if err := g.failed(s); err != nil {
			return err
		}
	}
	return nil
}

// Offer implements comm.Comm.
func (e *end) Offer(slot, src engine.Tensor, to int) {
	out := &side{Message: comm.NewMessage(src)}
	e.locked(func() error {
		g := e.group
		if err := e.vacate(slot, to); err != nil {
			return err
		}
		if err := comm.Agree(g.name, comm.Message{Tensor: slot, Site: out.Site}, e.rank, out.Message, e.rank); err != nil {
			return g.Fail(err)
		}
		e.stream.Take(slot, src, e.stream.Stream)
		out.Tensor, out.ready = slot, e.stream.Record()
		e.sending = append(e.sending, out)
		e.traffic.Sent(src.Len(), src.DType)
		w := g.way(e.rank, to)
		w.offers = append(w.offers, out)
		return g.slide(w, e.rank, to)
	})
}

// vacate holds the stream back until what was sent from a slot before has been taken.
func (e *end) vacate(slot engine.Tensor, to int) error {
	g := e.group
	for i := 0; i < len(e.sending); {
		s := e.sending[i]
		if !engine.Overlaps(s.Tensor, slot) {
			i++
			continue
		}
		if err := g.Wait(e.rank, fmt.Sprintf("rank %d to take what is in a slot", to),
			func() bool { return s.met }); err != nil {
			return err
		}
		e.stream.After(s.moved)
		g.streams[to].Forget(s.moved)
		e.sending = slices.Delete(e.sending, i, i+1)
	}
	return nil
}

// Post implements comm.Comm.
func (e *end) Post(slot engine.Tensor, from int) {
	in := &side{Message: comm.NewMessage(slot)}
	e.locked(func() error {
		g, w := e.group, e.group.way(from, e.rank)
		if w.sent != nil && len(w.offers) == 0 {
			return g.Disagree("rank %d sends to rank %d at %s, which posts memory at %s: that takes an Offer", from, e.rank,
				w.sent.At(), in.At())
		}
		if e.incoming[from] == nil {
			s, err := e.stream.Beside()
			if err != nil {
				return g.Fail(err)
			}
			e.incoming[from] = s
		}
		in.ready = e.stream.Record()
		w.posts = append(w.posts, in)
		return g.slide(w, from, e.rank)
	})
}

// Await implements comm.Comm.
func (e *end) Await(dst engine.Tensor, from int) {
	into := comm.NewMessage(dst)
	e.locked(func() error {
		g, w := e.group, e.group.way(from, e.rank)
		if len(w.posts) == 0 {
			return g.Disagree("rank %d awaits a message of rank %d at %s and has posted no memory for it", e.rank, from,
				into.At())
		}
		p := w.posts[0]
		if err := g.Wait(e.rank, fmt.Sprintf("a send of rank %d", from), func() bool { return p.met }); err != nil {
			return err
		}
		w.posts = w.posts[1:]
		if err := comm.Agree(g.name, into, e.rank, p.Message, e.rank); err != nil {
			return g.Fail(err)
		}
		e.stream.After(p.moved)
		e.stream.Forget(p.moved)
		e.stream.Take(dst, p.Tensor, e.stream.Stream)
		e.traffic.Posted++
		return nil
	})
}
