package comm

import (
	"fmt"
	"slices"
	"time"

	"patchbay/engine"
)

// hub connects the ranks of one group in a process. Transfers are plain copies, made by one rank while the other waits.
// Nothing is buffered, so a schedule that runs here needs no buffering anywhere.
type hub struct {
	*Rendezvous
	calls  []*Call // the collective in progress, by rank
	round  int     // collectives that all ranks have joined
	left   int     // ranks that have not finished copying in this round
	parted int     // last round that all ranks have finished
	mail   Mail[struct{}]
}

// Local is the Transport of ranks that share a process and its memory, on Ops whose calls are complete on return.
type Local struct {
	// Block, if not nil, waits until ready returns true in place of the transport's own wait: tests use it to decide
	// which rank runs next.
	Block func(ready func() bool)
}

func (l Local) Connect(g Group, ops []engine.Ops) ([]Comm, error) {
	h := &hub{calls: make([]*Call, len(ops))}
	h.Rendezvous = NewRendezvous(g, len(ops), func() string { return h.mail.Standing(h.calls) })
	h.block = l.Block
	h.mail = Mail[struct{}]{Name: g.Name, Move: h.move}
	out := make([]Comm, len(ops))
	for i := range out {
		out[i] = &localEnd{Seat: NewSeat(h.Rendezvous, i), hub: h}
	}
	return out, nil
}

func (Local) Interruptible() bool { return true }

// localEnd is one rank's end of a group.
type localEnd struct {
	Seat
	hub     *hub
	sending []*Side[struct{}] // offers whose slots may still be unread
	begun   chan any          // receives the panic value of the collective started by Begin, or nil
}

func (l *localEnd) Run(c *Call) {
	defer l.Spent(time.Now())
	l.collective(c)
	l.Sent(c.Sent(l.rank, l.Size()), c.Src.DType)
}

// Begin implements Comm with a goroutine.
func (l *localEnd) Begin(c *Call) {
	l.Sent(c.Sent(l.rank, l.Size()), c.Src.DType)
	l.begun = make(chan any, 1)
	run := func() {
		defer func() { l.begun <- recover() }()
		l.collective(c)
	}
	if l.block != nil { // ranks run one at a time
		run()
		return
	}
	go run()
}

func (l *localEnd) Fetched() {
	defer l.Spent(time.Now())
	if v := <-l.begun; v != nil {
		panic(v)
	}
}

// collective waits for all ranks of the group twice: until all calls are posted, and until all have copied.
func (l *localEnd) collective(c *Call) {
	h, round := l.hub, 0
	l.Do(func() error {
		round = h.round + 1
		h.calls[l.rank] = c
		if !slices.Contains(h.calls, nil) {
			if err := Check(h.Name, h.calls); err != nil {
				return err
			}
			h.left, h.round = len(h.calls), round
			h.WakeAll()
		}
		return l.Wait(c.Op, func() bool { return h.round >= round })
	})
	finish := c.Transfer(l.rank, h.calls)
	l.Do(func() error { // after this wait, buffers may be reused and the next exchange may begin
		if h.left--; h.left == 0 {
			h.calls, h.parted = make([]*Call, len(h.calls)), round
			h.WakeAll()
		}
		return l.Wait(c.Op+" of the others", func() bool { return h.parted >= round })
	})
	finish()
}

// move copies a message. The caller must hold the lock, so that the memory is not freed meanwhile: a rank that fails
// ends the group first, which takes the lock.
func (h *hub) move(_, _ int, out, in *Side[struct{}]) error {
	copyElements(in.Tensor, 0, out.Tensor, 0, out.Tensor.Len())
	h.WakeAll()
	return nil
}

// SendRecv implements Comm: the rank that comes last copies.
func (l *localEnd) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	defer l.Spent(time.Now())
	out, in := NewSide[struct{}](src), NewSide[struct{}](dst)
	l.Do(func() error { return l.hub.mail.Swap(&l.Seat, in, from, out, to) })
	if to >= 0 {
		l.Sent(src.Len(), src.DType)
	}
}

// Offer implements Comm: a message for which memory is posted is copied there at once, any other waits in its slot.
func (l *localEnd) Offer(slot, src engine.Tensor, to int) {
	defer l.Spent(time.Now())
	out := NewSide[struct{}](src)
	l.Do(func() error {
		for _, s := range l.sending {
			if engine.Overlaps(s.Tensor, slot) {
				if err := Meet(&l.Seat, s, fmt.Sprintf("rank %d to take what is in a slot", to)); err != nil {
					return err
				}
			}
		}
		l.sending = slices.DeleteFunc(l.sending, func(s *Side[struct{}]) bool { return s.Met })
		if !l.hub.mail.Wanted(l.rank, to) {
			in := Message{slot, out.Site}
			if err := Agree(l.Name, in, l.rank, out.Message, l.rank); err != nil {
				return err
			}
			copyElements(slot, 0, src, 0, src.Len())
			out.Message = in
			l.sending = append(l.sending, out)
		}
		return l.hub.mail.Offer(l.rank, to, out)
	})
	l.Sent(src.Len(), src.DType)
}

func (l *localEnd) Post(slot engine.Tensor, from int) {
	defer l.Spent(time.Now())
	in := NewSide[struct{}](slot)
	l.Do(func() error { return l.hub.mail.Post(from, l.rank, in) })
}

func (l *localEnd) Await(dst engine.Tensor, from int) {
	defer l.Spent(time.Now())
	into := NewMessage(dst)
	l.Do(func() error {
		in, err := l.hub.mail.Await(from, l.rank, into)
		if err != nil {
			return err
		}
		if err := Meet(&l.Seat, in, fmt.Sprintf("a send of rank %d", from)); err != nil {
			return err
		}
		copyElements(dst, 0, in.Tensor, 0, dst.Len())
		return nil
	})
	l.Took()
}
