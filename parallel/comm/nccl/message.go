package nccl

import (
	"slices"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

type side = comm.Side[driver.Point]

// SendRecv implements comm.Comm on the rank's stream.
func (e *end) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	out, in := comm.NewSide[driver.Point](src), comm.NewSide[driver.Point](dst)
	send, recv := make([]engine.Tensor, e.Size()), make([]engine.Tensor, e.Size())
	e.compared(func(g *members) error {
		if to >= 0 {
			send[to] = src
			if err := g.mail.Send(e.Rank(), to, out); err != nil {
				return err
			}
		}
		if from >= 0 {
			recv[from] = dst
			return g.mail.Receive(from, e.Rank(), in)
		}
		return nil
	})
	if to >= 0 {
		e.Sent(src.Len(), src.DType)
	}
	e.exchange("SendRecv", e.stream, recv, send)
}

// edges returns the communicators of neighbors, nil if there are none.
func (e *end) edges() []communicators {
	if e.group.wires == nil {
		return nil
	}
	return e.group.wires.edges
}

func (e *end) Offer(slot, src engine.Tensor, to int) {
	out := comm.NewSide[driver.Point](src)
	e.compared(func(g *members) error {
		if to != e.Rank()+1 || e.edges() == nil {
			return g.Errorf("rank %d offers to rank %d at %s: messages go to the next rank of a pipeline", e.Rank(), to,
				out.Site)
		}
		in := comm.Message{Tensor: slot, Site: out.Site}
		if err := comm.Agree(g.Name, in, e.Rank(), out.Message, e.Rank()); err != nil {
			return err
		}
		out.Message = in
		return g.mail.Offer(e.Rank(), to, out)
	})
	e.vacate(slot)
	e.stream.Take(slot, src, e.stream.Stream)
	on := e.aside(&e.out)
	follow(on, e.stream)
	edge := e.edges()[e.Rank()]
	e.issue("Offer", edge, 0, on, func() (bool, error) {
		return edge.Exchange(0, on.Stream, []engine.Tensor{{}, slot}, make([]engine.Tensor, 2))
	})
	out.Note = on.Record()
	e.sending = append(e.sending, out)
	e.Sent(src.Len(), src.DType)
}

// vacate makes the stream wait until what was sent from a slot before has left it.
func (e *end) vacate(slot engine.Tensor) {
	e.sending = slices.DeleteFunc(e.sending, func(s *side) bool {
		if !engine.Overlaps(s.Tensor, slot) {
			return false
		}
		e.stream.After(s.Note)
		e.stream.Forget(s.Note)
		return true
	})
}

func (e *end) Post(slot engine.Tensor, from int) {
	in := comm.NewSide[driver.Point](slot)
	e.compared(func(g *members) error {
		if from != e.Rank()-1 || e.edges() == nil {
			return g.Errorf("rank %d posts memory for rank %d at %s: messages come from the rank before", e.Rank(), from,
				in.Site)
		}
		return g.mail.Post(from, e.Rank(), in)
	})
	on := e.aside(&e.in)
	follow(on, e.stream)
	edge := e.edges()[from]
	e.issue("Post", edge, 1, on, func() (bool, error) {
		return edge.Exchange(1, on.Stream, make([]engine.Tensor, 2), []engine.Tensor{slot, {}})
	})
	in.Note = on.Record()
}

func (e *end) Await(dst engine.Tensor, from int) {
	into := comm.NewMessage(dst)
	var in *side
	e.compared(func(g *members) (err error) {
		in, err = g.mail.Await(from, e.Rank(), into)
		return err
	})
	e.stream.After(in.Note)
	e.stream.Forget(in.Note)
	e.stream.Take(dst, in.Tensor, e.stream.Stream)
	e.Took()
}
