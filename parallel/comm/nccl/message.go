package nccl

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// sent is a slot that a message leaves from or comes into, and where its stream is done with it.
type sent struct {
	comm.Message
	over driver.Point
}

// way is what one side has issued of the messages from one rank to another and the other side has not, oldest first:
// plain ones, and those in slots.
type way struct{ sends, receives, offers, posts []comm.Message }

// way returns the messages from one rank to another; the lock is held.
func (g *group) way(from, to int) *way {
	key := [2]int{from, to}
	if g.ways[key] == nil {
		g.ways[key] = &way{}
	}
	return g.ways[key]
}

// match compares the oldest messages of two sides that are both there; the lock is held. Who is elsewhere says nothing
// of its messages.
func (g *group) match(from, to int, out, in *[]comm.Message) error {
	if g.ends[from] == nil || g.ends[to] == nil {
		*out, *in = nil, nil
		return nil
	}
	if len(*out) == 0 || len(*in) == 0 {
		return nil
	}
	src, dst := (*out)[0], (*in)[0]
	*out, *in = (*out)[1:], (*in)[1:]
	return comm.Agree(g.name, dst, to, src, from)
}

func (g *group) disagree(format string, args ...any) error {
	return &comm.Error{Text: g.name + ": " + fmt.Sprintf(format, args...)}
}

// SendRecv implements comm.Comm on the rank's stream.
func (e *end) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	out, in := comm.NewMessage(src), comm.NewMessage(dst)
	e.compared(func(g *group) error {
		if to >= 0 {
			w := g.way(e.rank, to)
			if len(w.posts) > 0 {
				return g.disagree("rank %d sends to rank %d at %s, which has posted memory at %s: that takes an Offer", e.rank, to,
					out.At(), w.posts[0].At())
			}
			w.sends = append(w.sends, out)
			if err := g.match(e.rank, to, &w.sends, &w.receives); err != nil {
				return err
			}
		}
		if from >= 0 {
			w := g.way(from, e.rank)
			if len(e.posted) > 0 && from == e.rank-1 {
				return g.disagree("rank %d receives from rank %d at %s and has posted memory for it before", e.rank, from, in.At())
			}
			w.receives = append(w.receives, in)
			return g.match(from, e.rank, &w.sends, &w.receives)
		}
		return nil
	})
	send, recv := make([]engine.Tensor, e.Size()), make([]engine.Tensor, e.Size())
	if to >= 0 {
		send[to] = src
		e.count(func(t *comm.Traffic) { t.Sent(src.Len(), src.DType) })
	}
	if from >= 0 {
		recv[from] = dst
	}
	e.exchange("SendRecv", e.stream, recv, send)
}

// edges are the communicators of neighbours, nil where there are none.
func (e *end) edges() []communicators {
	if e.group.wires == nil {
		return nil
	}
	return e.group.wires.edges
}

// Offer implements comm.Comm.
func (e *end) Offer(slot, src engine.Tensor, to int) {
	out := comm.NewMessage(src)
	e.compared(func(g *group) error {
		if to != e.rank+1 || e.edges() == nil {
			return g.disagree("rank %d offers to rank %d at %s: messages go to the next rank of a pipeline", e.rank, to,
				out.At())
		}
		if err := comm.Agree(g.name, comm.Message{Tensor: slot, Site: out.Site}, e.rank, out, e.rank); err != nil {
			return err
		}
		w := g.way(e.rank, to)
		w.offers = append(w.offers, out)
		return g.match(e.rank, to, &w.offers, &w.posts)
	})
	e.vacate(slot)
	e.stream.Take(slot, src, e.stream)
	on := e.aside(&e.out)
	follow(on, e.stream)
	edge := e.edges()[e.rank]
	e.issue("Offer", edge, 0, on, func() (bool, error) {
		return edge.Exchange(0, on, []engine.Tensor{{}, slot}, make([]engine.Tensor, 2))
	})
	e.sending = append(e.sending, sent{comm.Message{Tensor: slot}, on.Record()})
	e.count(func(t *comm.Traffic) { t.Sent(src.Len(), src.DType) })
}

// vacate holds the stream back until what was sent from a slot before has left it.
func (e *end) vacate(slot engine.Tensor) {
	e.sending = slices.DeleteFunc(e.sending, func(s sent) bool {
		if !engine.Overlaps(s.Tensor, slot) {
			return false
		}
		e.stream.After(s.over)
		e.stream.Forget(s.over)
		return true
	})
}

// Post implements comm.Comm.
func (e *end) Post(slot engine.Tensor, from int) {
	in := comm.NewMessage(slot)
	e.compared(func(g *group) error {
		if from != e.rank-1 || e.edges() == nil {
			return g.disagree("rank %d posts memory for rank %d at %s: messages come from the rank before", e.rank, from,
				in.At())
		}
		w := g.way(from, e.rank)
		if len(w.sends) > 0 && len(w.offers) == 0 {
			return g.disagree("rank %d sends to rank %d at %s, which posts memory at %s: that takes an Offer", from, e.rank,
				w.sends[0].At(), in.At())
		}
		w.posts = append(w.posts, in)
		return g.match(from, e.rank, &w.offers, &w.posts)
	})
	on := e.aside(&e.in)
	follow(on, e.stream)
	edge := e.edges()[from]
	e.issue("Post", edge, 1, on, func() (bool, error) {
		return edge.Exchange(1, on, make([]engine.Tensor, 2), []engine.Tensor{slot, {}})
	})
	e.posted = append(e.posted, sent{in, on.Record()})
}

// Await implements comm.Comm.
func (e *end) Await(dst engine.Tensor, from int) {
	into := comm.NewMessage(dst)
	e.compared(func(g *group) error {
		if len(e.posted) == 0 || from != e.rank-1 {
			return g.disagree("rank %d awaits a message of rank %d at %s and has posted no memory for it", e.rank, from,
				into.At())
		}
		if p := e.posted[0]; p.Tensor.Len() != dst.Len() || p.Tensor.DType != dst.DType {
			return g.disagree("rank %d receives %s into memory posted at %s and receives %s of it at %s", e.rank, p.Tensor,
				p.At(), dst, into.At())
		}
		return nil
	})
	p := e.posted[0]
	e.posted = e.posted[1:]
	e.stream.After(p.over)
	e.stream.Forget(p.over)
	e.stream.Take(dst, p.Tensor, e.stream)
	e.count(func(t *comm.Traffic) { t.Posted++ })
}
