package comm

import (
	"fmt"
	"time"

	"patchbay/engine"
)

// way is the messages from one rank to another.
type way struct {
	sent     *Message // by SendRecv, not taken yet
	received int64    // by SendRecv
	offers   []*offer // by Offer, not taken yet, oldest first
	posts    []*post  // by Post, not awaited yet, oldest first
}

// offer is a message in a slot of its sender.
type offer struct{ Message }

// post is memory that waits for an offer.
type post struct {
	Message
	filled bool
}

// empty returns the oldest post that is not filled, nil if there is none.
func (w *way) empty() *post {
	for _, p := range w.posts {
		if !p.filled {
			return p
		}
	}
	return nil
}

// way returns the messages from one rank to another; the hub is locked.
func (h *hub) way(from, to int) *way {
	key := [2]int{from, to}
	if h.ways[key] == nil {
		h.ways[key] = &way{}
	}
	return h.ways[key]
}

// message runs f with the hub locked, panics with its error and notes the time.
func (l *localEnd) message(f func(h *hub) error) {
	start := time.Now()
	l.hub.Locked(func() error { return f(l.hub) })
	l.traffic.Wait += time.Since(start)
}

// SendRecv implements Comm: the receiver copies while the sender waits.
func (l *localEnd) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	out, in := NewMessage(src), NewMessage(dst)
	l.message(func(h *hub) error {
		var next int64
		if to >= 0 {
			w := h.way(l.rank, to)
			if p := w.empty(); p != nil {
				return h.Disagree("rank %d sends to rank %d at %s, which has posted memory at %s: that takes an Offer", l.rank, to,
					where(out.Site), where(p.Site))
			}
			if err := h.Wait(l.rank, "the previous send to be taken", func() bool { return w.sent == nil }); err != nil {
				return err
			}
			w.sent, next = &out, w.received+1
			h.Moved()
		}
		if from >= 0 {
			if err := l.receive(in, from); err != nil {
				return err
			}
		}
		if to >= 0 {
			w := h.way(l.rank, to)
			return h.Wait(l.rank, fmt.Sprintf("rank %d to receive", to), func() bool { return w.received >= next })
		}
		return nil
	})
	if to >= 0 {
		l.traffic.Sent(src.Len(), src.DType)
	}
}

// receive takes what from sends by SendRecv; the hub is locked.
func (l *localEnd) receive(in Message, from int) error {
	h, w := l.hub, l.hub.way(from, l.rank)
	if len(w.posts) > 0 {
		return h.Disagree("rank %d receives from rank %d at %s and has posted memory for it before", l.rank,
			from, where(in.Site))
	}
	if err := h.Wait(l.rank, fmt.Sprintf("a send of rank %d", from), func() bool { return w.sent != nil }); err != nil {
		return err
	}
	if err := Deliver(h.name, in, l.rank, *w.sent, from); err != nil {
		return h.Fail(err)
	}
	w.sent = nil
	w.received++
	h.Moved()
	return nil
}

// Offer implements Comm: a message that finds posted memory goes there at once, any other one waits in its slot.
func (l *localEnd) Offer(slot, src engine.Tensor, to int) {
	out := NewMessage(src)
	l.message(func(h *hub) error {
		w := h.way(l.rank, to)
		busy := func() bool {
			for _, o := range w.offers {
				if engine.Overlaps(o.Tensor, slot) {
					return true
				}
			}
			return false
		}
		if err := h.Wait(l.rank, fmt.Sprintf("rank %d to take what is in a slot", to),
			func() bool { return !busy() }); err != nil {
			return err
		}
		if p := w.empty(); p != nil {
			return h.fill(w, p, to, &offer{out}, l.rank)
		}
		o := &offer{Message{slot, out.Site}}
		if err := Deliver(h.name, o.Message, l.rank, out, l.rank); err != nil {
			return h.Fail(err)
		}
		w.offers = append(w.offers, o)
		h.Moved()
		return nil
	})
	l.traffic.Sent(src.Len(), src.DType)
}

// fill copies an offer to posted memory; the hub is locked, so that memory is not given back meanwhile: whoever fails
// aborts the hub first.
func (h *hub) fill(w *way, p *post, to int, o *offer, from int) error {
	if h.cause != nil {
		return nil // the next wait says so
	}
	if err := Deliver(h.name, p.Message, to, o.Message, from); err != nil {
		return h.Fail(err)
	}
	p.filled = true
	if len(w.offers) > 0 && w.offers[0] == o {
		w.offers = w.offers[1:]
	}
	h.Moved()
	return nil
}

// Post implements Comm.
func (l *localEnd) Post(slot engine.Tensor, from int) {
	p := &post{Message: NewMessage(slot)}
	l.message(func(h *hub) error {
		w := h.way(from, l.rank)
		w.posts = append(w.posts, p)
		switch {
		case len(w.offers) > 0 && w.empty() == p:
			return h.fill(w, p, l.rank, w.offers[0], from)
		case w.sent != nil: // all offers before it are taken
			return h.Disagree("rank %d sends to rank %d at %s, which posts memory at %s: that takes an Offer", from, l.rank,
				where(w.sent.Site), where(p.Site))
		}
		return nil
	})
}

// Await implements Comm.
func (l *localEnd) Await(dst engine.Tensor, from int) {
	in := NewMessage(dst)
	l.message(func(h *hub) error {
		w := h.way(from, l.rank)
		if len(w.posts) == 0 {
			return h.Disagree("rank %d awaits a message of rank %d at %s and has posted no memory for it", l.rank,
				from, where(in.Site))
		}
		p := w.posts[0]
		if err := h.Wait(l.rank, fmt.Sprintf("a send of rank %d", from), func() bool { return p.filled }); err != nil {
			return err
		}
		w.posts = w.posts[1:]
		if err := Deliver(h.name, in, l.rank, p.Message, l.rank); err != nil {
			return h.Fail(err)
		}
		return nil
	})
	l.traffic.Posted++
}
