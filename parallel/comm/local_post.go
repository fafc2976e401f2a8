package comm

import (
	"fmt"
	"time"

	"patchbay/engine"
)

// localExpect is memory that waits for a message.
type localExpect struct {
	dst    engine.Tensor
	site   uintptr
	filled bool
}

// Post implements Comm: the send that it meets fills dst, now if the sender stands there already.
func (l *localEnd) Post(dst engine.Tensor, from int) {
	h, key := l.hub, [2]int{from, l.rank}
	e := &localExpect{dst: dst, site: caller()}
	h.mu.Lock()
	var err *Error
	if post := h.posts[key]; post != nil && h.expected(key) == nil {
		if err = h.fill(key, e, post.src, post.site); err == nil {
			post.taken = true
			delete(h.posts, key)
		}
	}
	h.expects[key] = append(h.expects[key], e)
	h.cond.Broadcast()
	h.mu.Unlock()
	if err != nil {
		panic(err)
	}
}

// Await implements Comm.
func (l *localEnd) Await(from int) {
	h, key, start := l.hub, [2]int{from, l.rank}, time.Now()
	h.mu.Lock()
	err := h.take(key)
	h.mu.Unlock()
	if err != nil {
		panic(err)
	}
	l.traffic.Wait += time.Since(start)
	l.traffic.Posted++
}

// take waits for the oldest posted memory to be filled; the hub is locked.
func (h *hub) take(key [2]int) *Error {
	list := h.expects[key]
	if len(list) == 0 {
		err := &Error{Text: fmt.Sprintf("%s: rank %d awaits a message of rank %d and has posted no memory for it", h.name, key[1], key[0])}
		h.fail(err)
		return err
	}
	if err := h.wait(key[1], fmt.Sprintf("a send of rank %d", key[0]), func() bool { return list[0].filled }); err != nil {
		return err
	}
	h.expects[key] = h.expects[key][1:]
	return nil
}

// expected returns the oldest memory posted on a way that is not filled yet, nil if there is none; the hub is locked.
func (h *hub) expected(key [2]int) *localExpect {
	for _, e := range h.expects[key] {
		if !e.filled {
			return e
		}
	}
	return nil
}

// fill copies a message to posted memory; the hub is locked, so that memory is not given back meanwhile: whoever fails aborts the hub first.
func (h *hub) fill(key [2]int, e *localExpect, src engine.Tensor, site uintptr) *Error {
	if src.Len() != e.dst.Len() || src.DType != e.dst.DType {
		err := &Error{Text: fmt.Sprintf("%s: rank %d sends %s at %s, rank %d has posted %s at %s",
			h.name, key[0], src, where(site), key[1], e.dst, where(e.site))}
		h.fail(err)
		return err
	}
	if h.cause == nil {
		copyElements(e.dst, 0, src, 0, src.Len())
		e.filled = true
	}
	return nil
}
