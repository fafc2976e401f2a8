package comm

import (
	"fmt"
	"slices"
	"time"

	"patchbay/engine"
)

// hub connects the ranks of one group inside a process. Transfers are plain copies, done by the receiver while the
// sender waits: nothing is buffered, so a schedule that runs here needs no buffering anywhere.
type hub struct {
	*Rendezvous
	size   int
	calls  []*Call         // collective in progress, by rank
	round  int             // collectives that all ranks have joined
	left   int             // ranks that have not finished copying in this one
	parted int             // last round that all ranks have finished
	ways   map[[2]int]*way // by sender and receiver
}

// Local is the Transport of ranks that share a process and its memory, on Ops whose calls have happened when they
// return.
type Local struct {
	// Block, if not nil, waits until ready holds in place of the transport's own wait: tests decide there which rank runs
	// next.
	Block func(ready func() bool)
}

// Connect implements Transport.
func (l Local) Connect(g Group, ops []engine.Ops) ([]Comm, error) {
	size := len(ops)
	h := &hub{size: size, calls: make([]*Call, size), ways: map[[2]int]*way{}}
	h.Rendezvous = NewRendezvous(g, size, h.dump)
	h.block = l.Block
	out := make([]Comm, size)
	for i := range out {
		out[i] = &localEnd{hub: h, rank: i}
	}
	return out, nil
}

// Interruptible implements Transport.
func (Local) Interruptible() bool { return true }

// localEnd is one rank's end of a group.
type localEnd struct {
	hub      *hub
	rank     int
	traffic  Traffic
	prefetch *Call    // under way
	fetched  chan any // gets what the prefetch panicked with, nil if it did not
}

// Rank returns this end's number in the group.
func (l *localEnd) Rank() int { return l.rank }

// Size returns the number of ranks in the group.
func (l *localEnd) Size() int { return l.hub.size }

// Traffic returns what this rank has sent so far.
func (l *localEnd) Traffic() Traffic { return l.traffic }

// Abort wakes all ranks of the group with cause.
func (l *localEnd) Abort(cause error) { l.hub.Abort(cause) }

// AllToAll implements Comm.
func (l *localEnd) AllToAll(dst, src engine.Tensor, recv, send []int) {
	l.do(NewAllToAll(dst, src, recv, send))
}

// AllGather implements Comm.
func (l *localEnd) AllGather(dst, src engine.Tensor, counts []int) {
	l.do(NewAllGather(dst, src, counts))
}

// ReduceScatter implements Comm.
func (l *localEnd) ReduceScatter(dst, src engine.Tensor, counts []int) {
	l.do(NewReduceScatter(dst, src, counts))
}

// AllReduce implements Comm.
func (l *localEnd) AllReduce(buf engine.Tensor) { l.do(NewAllReduce(buf)) }

// Prefetch implements Comm.
func (l *localEnd) Prefetch(dst, src engine.Tensor, counts []int) {
	l.begin(NewAllGather(dst, src, counts))
}

// Exchange implements Comm.
func (l *localEnd) Exchange(dst, src engine.Tensor, recv, send []int) {
	l.begin(NewAllToAll(dst, src, recv, send))
}

// begin runs a collective in a goroutine of its own.
func (l *localEnd) begin(c *Call) {
	l.prefetch, l.fetched = c, make(chan any, 1)
	run := func() {
		defer func() { l.fetched <- recover() }()
		l.collective(c)
	}
	if l.hub.block != nil { // ranks run one at a time
		run()
		return
	}
	go run()
}

// Fetched implements Comm.
func (l *localEnd) Fetched() {
	start := time.Now()
	if v := <-l.fetched; v != nil {
		panic(v)
	}
	l.count(l.prefetch, start)
}

// do runs a collective and counts it.
func (l *localEnd) do(c *Call) {
	start := time.Now()
	l.collective(c)
	l.count(c, start)
}

func (l *localEnd) count(c *Call, start time.Time) {
	l.traffic.Sent(c.Sent(l.rank, l.hub.size), c.Src.DType)
	l.traffic.Wait += time.Since(start)
}

// collective meets all ranks of the group twice: when all calls are posted, and when all have copied.
func (l *localEnd) collective(c *Call) {
	calls, err := l.meet(c)
	if err != nil {
		panic(err)
	}
	finish := c.Transfer(l.rank, calls)
	if err := l.part(c); err != nil {
		panic(err)
	}
	finish()
}

// meet posts a call and returns those of all ranks once everyone has come.
func (l *localEnd) meet(c *Call) ([]*Call, error) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	round := h.round
	h.calls[l.rank] = c
	if !slices.Contains(h.calls, nil) {
		if err := Check(h.name, h.calls); err != nil {
			return nil, h.Fail(err)
		}
		h.left = h.size
		h.round++
		h.Moved()
	}
	if err := h.Wait(l.rank, c.Op, func() bool { return h.round > round }); err != nil {
		return nil, err
	}
	return h.calls, nil
}

// part waits until all ranks have copied, so that buffers may be reused and the next exchange may begin.
func (l *localEnd) part(c *Call) error {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	round := h.round
	h.left--
	if h.left == 0 {
		h.calls = make([]*Call, h.size)
		h.parted = round
		h.Moved()
	}
	return h.Wait(l.rank, c.Op+" of the others", func() bool { return h.parted >= round })
}

// Waiting implements Comm.
func (l *localEnd) Waiting() string { return l.hub.Waiting(l.rank) }

// dump lists who waits where.
func (h *hub) dump() string {
	s := ""
	for r, c := range h.calls {
		if c != nil {
			s += fmt.Sprintf("[rank %d %s at %s]", r, c.Op, where(c.Site))
		}
	}
	for k, w := range h.ways {
		if w.sent != nil {
			s += fmt.Sprintf("[rank %d sends to %d at %s]", k[0], k[1], where(w.sent.Site))
		}
	}
	return s
}
