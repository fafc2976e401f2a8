package stream

import (
	"fmt"
	"time"

	"patchbay/engine"
	"patchbay/parallel/comm"
)

// SendRecv implements comm.Comm: the message lies in the memory of the receiving process until it is taken.
func (e *end) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	start := time.Now()
	out, in := comm.NewMessage(src), comm.NewMessage(dst)
	if to >= 0 {
		e.send(plain, to, "SendRecv", out.At(), e.fetched(src, src.Len()), 0, src.Len())
		e.traffic.Sent(src.Len(), src.DType)
	}
	if from >= 0 {
		w := way{from: from, to: e.rank}
		e.Locked(func() error {
			if len(e.posts[w]) > 0 {
				return e.Disagree("rank %d receives from rank %d at %s and has posted memory for it before", e.rank, from, in.At())
			}
			return nil
		})
		f := e.message(plain, w, in.At())
		defer f.done()
		e.fill(message{dst, in.At()}, f, from)
	}
	e.traffic.Wait += time.Since(start)
}

// message takes the oldest message of a way, which must be of the kind that its receiver expects.
func (e *end) message(k kind, w way, at string) *frame {
	f, err := e.await(w, e.rank, fmt.Sprintf("a send of rank %d", w.from))
	if err != nil {
		panic(err)
	}
	switch {
	case f.kind == k:
		return f
	case k == offered:
		panic(e.broken("rank %d sends to rank %d at %s, which posts memory at %s: that takes an Offer", w.from, e.rank,
			f.site, at))
	}
	panic(e.broken("rank %d offers to rank %d at %s, which receives at %s: that takes a Post", w.from, e.rank, f.site, at))
}

// fill fills memory with a message. Both must agree on count and dtype.
func (e *end) fill(dst message, f *frame, from int) {
	if dst.DType != f.dtype || dst.Len() != len(f.payload)/f.dtype.Size() {
		panic(e.broken("rank %d sends %s[%d] at %s, rank %d receives %s at %s", from, f.dtype,
			len(f.payload)/f.dtype.Size(), f.site, e.rank, dst.Tensor, dst.at))
	}
	e.put(dst.Tensor, f.payload)
}

// Offer implements comm.Comm. The message leaves src at once, so that its slot is not needed.
func (e *end) Offer(_, src engine.Tensor, to int) {
	start := time.Now()
	e.send(offered, to, "Offer", comm.NewMessage(src).At(), e.fetched(src, src.Len()), 0, src.Len())
	e.traffic.Sent(src.Len(), src.DType)
	e.traffic.Wait += time.Since(start)
}

// Post implements comm.Comm: the memory is filled by Await.
func (e *end) Post(slot engine.Tensor, from int) {
	at := comm.NewMessage(slot).At()
	e.Locked(func() error {
		w := way{from: from, to: e.rank}
		e.posts[w] = append(e.posts[w], message{slot, at})
		return nil
	})
}

// Await implements comm.Comm.
func (e *end) Await(dst engine.Tensor, from int) {
	start := time.Now()
	w, in := way{from: from, to: e.rank}, comm.NewMessage(dst)
	var slot message
	e.Locked(func() error {
		if len(e.posts[w]) == 0 {
			return e.Disagree("rank %d awaits a message of rank %d at %s and has posted no memory for it", e.rank, from, in.At())
		}
		slot, e.posts[w] = e.posts[w][0], e.posts[w][1:]
		return nil
	})
	f := e.message(offered, w, slot.at)
	defer f.done()
	e.fill(slot, f, from)
	e.fill(message{dst, in.At()}, f, from)
	e.traffic.Posted++
	e.traffic.Wait += time.Since(start)
}
