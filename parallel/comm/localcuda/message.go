package localcuda

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// points holds, for a side of a message, the point of its stream at which it was issued and the point after the copy,
// which runs on the stream on of the receiving side.
type points struct {
	ready, moved driver.Point
	on           *cuda.Ops
}

type side = comm.Side[points]

// SendRecv implements comm.Comm: the receiver's stream copies, and the sender's stream continues after that.
func (e *end) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	out, in := comm.NewSide[points](src), comm.NewSide[points](dst)
	e.do(func() error {
		if to >= 0 {
			out.Note.ready = e.stream.Record()
		}
		if from >= 0 {
			in.Note.ready, in.Note.on = e.stream.Record(), e.stream
		}
		if err := e.group.mail.Swap(&e.Seat, in, from, out, to); err != nil {
			return err
		}
		if to >= 0 {
			e.stream.After(out.Note.moved)
			e.group.streams[to].Forget(out.Note.moved)
		}
		return nil
	})
	if to >= 0 {
		e.Sent(src.Len(), src.DType)
	}
}

// move enqueues the copy of a message on the stream of its receiver, who is waiting, or on the stream reserved for
// messages into slots. The caller must hold the lock.
func (g *group) move(from, to int, out, in *side) error {
	s := in.Note.on
	s.After(out.Note.ready)
	s.After(in.Note.ready)
	s.Take(in.Tensor, out.Tensor, g.streams[from].Stream)
	g.streams[from].Forget(out.Note.ready)
	g.streams[to].Forget(in.Note.ready)
	if out.Note.moved = s.Record(); s != g.streams[to] {
		in.Note.moved = s.Record()
	}
	g.WakeAll()
	return g.failed(s)
}

func (e *end) Offer(slot, src engine.Tensor, to int) {
	out := comm.NewSide[points](src)
	e.do(func() error {
		if err := e.vacate(slot, to); err != nil {
			return err
		}
		in := comm.Message{Tensor: slot, Site: out.Site}
		if err := comm.Agree(e.Name, in, e.Rank(), out.Message, e.Rank()); err != nil {
			return err
		}
		e.stream.Take(slot, src, e.stream.Stream)
		out.Message, out.Note.ready = in, e.stream.Record()
		e.sending = append(e.sending, out)
		return e.group.mail.Offer(e.Rank(), to, out)
	})
	e.Sent(src.Len(), src.DType)
}

// vacate makes the stream wait until what was sent from a slot before has been copied.
func (e *end) vacate(slot engine.Tensor, to int) error {
	for i := 0; i < len(e.sending); {
		s := e.sending[i]
		if !engine.Overlaps(s.Tensor, slot) {
			i++
			continue
		}
		if err := comm.Meet(&e.Seat, s, fmt.Sprintf("rank %d to take what is in a slot", to)); err != nil {
			return err
		}
		e.stream.After(s.Note.moved)
		e.group.streams[to].Forget(s.Note.moved)
		e.sending = slices.Delete(e.sending, i, i+1)
	}
	return nil
}

func (e *end) Post(slot engine.Tensor, from int) {
	in := comm.NewSide[points](slot)
	e.do(func() (err error) {
		if e.incoming[from] == nil {
			if e.incoming[from], err = e.stream.Beside(); err != nil {
				return err
			}
		}
		in.Note.ready, in.Note.on = e.stream.Record(), e.incoming[from]
		return e.group.mail.Post(from, e.Rank(), in)
	})
}

func (e *end) Await(dst engine.Tensor, from int) {
	into := comm.NewMessage(dst)
	e.do(func() error {
		in, err := e.group.mail.Await(from, e.Rank(), into)
		if err != nil {
			return err
		}
		if err := comm.Meet(&e.Seat, in, fmt.Sprintf("a send of rank %d", from)); err != nil {
			return err
		}
		e.stream.After(in.Note.moved)
		e.stream.Forget(in.Note.moved)
		e.stream.Take(dst, in.Tensor, e.stream.Stream)
		return nil
	})
	e.Took()
}
