package stream

import (
	"fmt"
	"time"

	"patchbay/engine"
	"patchbay/parallel/comm"
)

// SendRecv implements comm.Comm: the message is kept in the memory of the receiving process until it is taken.
func (e *end) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	defer e.Spent(time.Now())
	out, in := comm.NewMessage(src), comm.NewMessage(dst)
	if to >= 0 {
		e.send(plain, to, "SendRecv", out.Site, e.fetched(src, src.Len()))
		e.Sent(src.Len(), src.DType)
	}
	if from >= 0 {
		if len(e.posts[from]) > 0 {
			e.fail(e.Errorf("rank %d receives from rank %d at %s and has posted memory for it before", e.Rank(), from, in.Site))
		}
		e.fill(in, e.message(plain, from, in.Site))
	}
}

// message takes the oldest message of a rank and fails unless it is of the kind that the receiver expects.
func (e *end) message(k kind, from int, at comm.Site) *frame {
	f := e.await(way{from: from, to: e.Rank()}, fmt.Sprintf("a send of rank %d", from))
	switch {
	case f.kind == k:
	case k == offered:
		e.fail(e.Errorf("rank %d sends to rank %d at %s, which posts memory at %s: that takes an Offer", from, e.Rank(),
			f.site, at))
	default:
		e.fail(e.Errorf("rank %d offers to rank %d at %s, which receives at %s: that takes a Post", from, e.Rank(), f.site,
			at))
	}
	return f
}

// fill copies a message to memory and fails unless both agree on count and dtype.
func (e *end) fill(dst comm.Message, f *frame) {
	t := dst.Tensor
	if t.DType != f.dtype || t.Len() != len(f.payload)/f.dtype.Size() {
		e.fail(e.Errorf("rank %d sends %s[%d] at %s, rank %d receives %s at %s", f.from, f.dtype,
			len(f.payload)/f.dtype.Size(), f.site, e.Rank(), t, dst.Site))
	}
	e.put(t, f.payload)
}

// Offer implements comm.Comm. The message is read from src at once, so the slot is not needed.
func (e *end) Offer(_, src engine.Tensor, to int) {
	defer e.Spent(time.Now())
	e.send(offered, to, "Offer", comm.NewMessage(src).Site, e.fetched(src, src.Len()))
	e.Sent(src.Len(), src.DType)
}

// Post implements comm.Comm: Await fills the memory.
func (e *end) Post(slot engine.Tensor, from int) {
	e.posts[from] = append(e.posts[from], comm.NewMessage(slot))
}

func (e *end) Await(dst engine.Tensor, from int) {
	defer e.Spent(time.Now())
	in, posts := comm.NewMessage(dst), e.posts[from]
	if len(posts) == 0 {
		e.fail(e.Errorf("rank %d awaits a message of rank %d at %s and has posted no memory for it", e.Rank(), from, in.Site))
	}
	slot := posts[0]
	e.posts[from] = posts[1:]
	f := e.message(offered, from, slot.Site)
	e.fill(slot, f)
	e.fill(in, f)
	e.Took()
}
