package comm

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"patchbay/engine"
)

// hub connects the ranks of one group inside a process. Transfers are plain copies, done by the receiver while the sender waits: nothing is
// buffered, so a schedule that runs here needs no buffering anywhere.
type hub struct {
	name     string // axis, for errors
	size     int
	deadline time.Duration           // for every wait; 0: none
	block    func(ready func() bool) // Local.Block

	mu     sync.Mutex
	cond   *sync.Cond
	cause  error
	calls  []*localCall // collective in progress, by rank
	round  int          // collectives that all ranks have joined
	left   int          // ranks that have not finished copying in this one
	parted int          // last round that all ranks have finished
	posts  map[[2]int]*localPost
	// expects is memory posted for messages, by sender and receiver, in the order of their calls.
	expects map[[2]int][]*localExpect
	waits   []string // by rank: what it waits for
}

// localCall is one rank's part of a collective.
type localCall struct {
	op       string
	dst, src engine.Tensor
	recv     []int
	send     []int
	root     int
	site     uintptr
}

// localPost is a tensor offered to one peer.
type localPost struct {
	src   engine.Tensor
	site  uintptr
	taken bool
}

// Local is the Transport of ranks that share a process and its memory, on Ops whose calls have happened when they return.
type Local struct {
	// Block, if not nil, waits until ready holds in place of the transport's own wait: tests decide there which rank runs next.
	Block func(ready func() bool)
}

// Connect implements Transport.
func (l Local) Connect(name string, ops []engine.Ops, deadline time.Duration) ([]Comm, error) {
	size := len(ops)
	h := &hub{
		name: name, size: size, deadline: deadline, block: l.Block, calls: make([]*localCall, size), posts: map[[2]int]*localPost{},
		expects: map[[2]int][]*localExpect{}, waits: make([]string, size),
	}
	h.cond = sync.NewCond(&h.mu)
	out := make([]Comm, size)
	for i := range out {
		out[i] = &localEnd{hub: h, rank: i}
	}
	return out, nil
}

// localEnd is one rank's end of a group.
type localEnd struct {
	hub     *hub
	rank    int
	traffic Traffic
}

// Rank returns this end's number in the group.
func (l *localEnd) Rank() int { return l.rank }

// Size returns the number of ranks in the group.
func (l *localEnd) Size() int { return l.hub.size }

// Traffic returns what this rank has sent so far.
func (l *localEnd) Traffic() Traffic { return l.traffic }

// Abort wakes all ranks of the group with cause.
func (l *localEnd) Abort(cause error) {
	h := l.hub
	h.mu.Lock()
	if h.cause == nil {
		h.cause = cause
	}
	h.mu.Unlock()
	h.cond.Broadcast()
}

// AllToAll implements Comm.
func (l *localEnd) AllToAll(dst, src engine.Tensor, recv, send []int) {
	l.collective(&localCall{op: "AllToAll", dst: dst, src: src, recv: recv, send: send, site: caller()}, func(calls []*localCall) {
		at := 0
		for peer, n := range recv {
			from := calls[peer]
			off := sum(from.send[:l.rank])
			copyElements(dst, at, from.src, off, n)
			at += n
		}
	})
	l.count(sum(send)-send[l.rank], src.DType)
}

// AllGather implements Comm.
func (l *localEnd) AllGather(dst, src engine.Tensor, counts []int) {
	l.collective(&localCall{op: "AllGather", dst: dst, src: src, recv: counts, site: caller()}, func(calls []*localCall) {
		at := 0
		for peer, n := range counts {
			copyElements(dst, at, calls[peer].src, 0, n)
			at += n
		}
	})
	l.count(counts[l.rank]*(l.hub.size-1), src.DType)
}

// ReduceScatter implements Comm.
func (l *localEnd) ReduceScatter(dst, src engine.Tensor, counts []int) {
	l.collective(&localCall{op: "ReduceScatter", dst: dst, src: src, send: counts, site: caller()}, func(calls []*localCall) {
		off, n := sum(counts[:l.rank]), counts[l.rank]
		addElements(dst, calls, off, n)
	})
	l.count(sum(counts)-counts[l.rank], src.DType)
}

// AllReduce implements Comm: a sum into a scratch copy by everyone, then everybody stores it, so that all ranks get the same bits.
func (l *localEnd) AllReduce(buf engine.Tensor) {
	total := engine.NewTensor(engine.Buf{Host: make([]byte, buf.Bytes())}, buf.DType, buf.Len())
	l.collective(&localCall{op: "AllReduce", dst: buf, src: buf, site: caller()}, func(calls []*localCall) {
		addElements(total, calls, 0, buf.Len())
	})
	copyElements(buf, 0, total, 0, buf.Len())
	p := l.hub.size
	l.count(2*(p-1)*buf.Len()/p, buf.DType)
}

// Broadcast implements Comm.
func (l *localEnd) Broadcast(buf engine.Tensor, root int) {
	l.collective(&localCall{op: "Broadcast", dst: buf, src: buf, root: root, site: caller()}, func(calls []*localCall) {
		if l.rank != root {
			copyElements(buf, 0, calls[root].src, 0, buf.Len())
		}
	})
	if l.rank == root {
		l.count(buf.Len()*(l.hub.size-1), buf.DType)
	}
}

// SendRecv implements Comm.
func (l *localEnd) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	h := l.hub
	start := time.Now()
	site := caller()
	h.mu.Lock()
	err := l.exchange(dst, from, src, to, site)
	h.mu.Unlock()
	if err != nil {
		panic(err)
	}
	if to >= 0 {
		l.count(src.Len(), src.DType)
	}
	l.traffic.Wait += time.Since(start)
}

// exchange offers src, takes what from offers, and waits until to has taken src; the hub is locked.
func (l *localEnd) exchange(dst engine.Tensor, from int, src engine.Tensor, to int, site uintptr) *Error {
	h := l.hub
	mine := &localPost{src: src, site: site}
	if to >= 0 {
		key := [2]int{l.rank, to}
		if err := h.wait(l.rank, "the previous send to be taken", func() bool { return h.posts[key] == nil }); err != nil {
			return err
		}
		if e := h.expected(key); e != nil {
			if err := h.fill(key, e, src, site); err != nil {
				return err
			}
			mine.taken = e.filled
		} else {
			h.posts[key] = mine
		}
		h.cond.Broadcast()
	}
	if from >= 0 {
		key := [2]int{from, l.rank}
		if len(h.expects[key]) > 0 {
			err := &Error{Text: fmt.Sprintf("%s: rank %d receives from rank %d at %s and has posted memory for it before", h.name, l.rank, from, where(site))}
			h.fail(err)
			return err
		}
		if err := h.wait(l.rank, fmt.Sprintf("a send of rank %d", from), func() bool { return h.posts[key] != nil }); err != nil {
			return err
		}
		post := h.posts[key]
		if post.src.Len() != dst.Len() || post.src.DType != dst.DType {
			err := &Error{Text: fmt.Sprintf("%s: rank %d sends %s at %s, rank %d receives %s at %s",
				h.name, from, post.src, where(post.site), l.rank, dst, where(site))}
			h.fail(err)
			return err
		}
		copyElements(dst, 0, post.src, 0, dst.Len())
		post.taken = true
		delete(h.posts, key)
		h.cond.Broadcast()
	}
	if to < 0 {
		return nil
	}
	return h.wait(l.rank, fmt.Sprintf("rank %d to receive", to), func() bool { return mine.taken })
}

func (l *localEnd) count(elements int, d engine.DType) {
	l.traffic.Calls++
	l.traffic.Bytes += int64(elements * d.Size())
}

// collective meets all ranks of the group twice: when all calls are posted, and when all have copied.
func (l *localEnd) collective(c *localCall, transfer func(calls []*localCall)) {
	start := time.Now()
	calls, err := l.meet(c)
	if err != nil {
		panic(err)
	}
	transfer(calls)
	if err := l.part(c); err != nil {
		panic(err)
	}
	l.traffic.Wait += time.Since(start)
}

// meet posts a call and returns those of all ranks once everyone has come.
func (l *localEnd) meet(c *localCall) ([]*localCall, error) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	round := h.round
	h.calls[l.rank] = c
	if !slices.Contains(h.calls, nil) {
		if err := h.check(); err != nil {
			h.fail(err)
			return nil, err
		}
		h.left = h.size
		h.round++
		h.cond.Broadcast()
	}
	if err := h.wait(l.rank, c.op, func() bool { return h.round > round }); err != nil {
		return nil, err
	}
	return h.calls, nil
}

// part waits until all ranks have copied, so that buffers may be reused and the next exchange may begin.
func (l *localEnd) part(c *localCall) error {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	round := h.round
	h.left--
	if h.left == 0 {
		h.calls = make([]*localCall, h.size)
		h.parted = round
		h.cond.Broadcast()
	}
	if err := h.wait(l.rank, c.op+" of the others", func() bool { return h.parted >= round }); err != nil {
		return err
	}
	return nil
}

// wait blocks until ready holds; the hub is locked. It returns an error when the group is aborted or the deadline passes.
func (h *hub) wait(rank int, what string, ready func() bool) *Error {
	if h.cause == nil && ready() {
		return nil
	}
	h.waits[rank] = what
	defer func() { h.waits[rank] = "" }()
	if h.block != nil {
		h.mu.Unlock()
		h.block(func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.cause != nil || ready()
		})
		h.mu.Lock()
	}
	late := false
	if h.deadline > 0 && h.block == nil {
		timer := time.AfterFunc(h.deadline, func() {
			h.mu.Lock()
			late = true
			h.mu.Unlock()
			h.cond.Broadcast()
		})
		defer timer.Stop()
	}
	for h.cause == nil && !ready() {
		if late {
			err := &Error{Text: fmt.Sprintf("%s: rank %d waited %v for %s; waiting: %s", h.name, rank, h.deadline, what, h.dump())}
			h.fail(err)
			return err
		}
		h.cond.Wait()
	}
	if h.cause != nil {
		return &Error{Text: fmt.Sprintf("%s: rank %d stopped waiting for %s", h.name, rank, what), Cause: h.cause}
	}
	return nil
}

// fail aborts the group; the hub is locked.
func (h *hub) fail(err error) {
	if h.cause == nil {
		h.cause = err
	}
	h.cond.Broadcast()
}

// check compares the calls of all ranks before any byte moves.
func (h *hub) check() error {
	a := h.calls[0]
	for r, b := range h.calls[1:] {
		r++
		if a.op != b.op || a.src.DType != b.src.DType || a.root != b.root {
			return h.differ(r, "operation, dtype or root")
		}
		switch a.op {
		case "AllGather":
			if !slices.Equal(a.recv, b.recv) {
				return h.differ(r, "counts")
			}
		case "ReduceScatter":
			if !slices.Equal(a.send, b.send) {
				return h.differ(r, "counts")
			}
		case "AllReduce", "Broadcast":
			if a.src.Len() != b.src.Len() {
				return h.differ(r, "length")
			}
		}
	}
	for r, c := range h.calls {
		if err := c.sizes(h.size); err != nil {
			return &Error{Text: fmt.Sprintf("%s: rank %d at %s: %v", h.name, r, where(c.site), err)}
		}
		if c.op == "AllToAll" {
			for p, q := range h.calls {
				if q.send[r] != c.recv[p] {
					return &Error{Text: fmt.Sprintf("%s: AllToAll: rank %d sends %d elements to rank %d at %s, which expects %d at %s",
						h.name, p, q.send[r], r, where(q.site), c.recv[p], where(c.site))}
				}
			}
		}
	}
	return nil
}

// sizes checks a call's counts against its tensors.
func (c *localCall) sizes(ranks int) error {
	fits := func(t engine.Tensor, n int) bool { return n == 0 || (t.Contiguous() && t.Len() >= n) }
	switch c.op {
	case "AllToAll":
		if len(c.recv) != ranks || len(c.send) != ranks || !fits(c.dst, sum(c.recv)) || !fits(c.src, sum(c.send)) {
			return fmt.Errorf("AllToAll of %v -> %v does not fit %s -> %s or %d ranks", c.send, c.recv, c.src, c.dst, ranks)
		}
	case "AllGather":
		if len(c.recv) != ranks || !fits(c.dst, sum(c.recv)) {
			return fmt.Errorf("AllGather of %v does not fit %s or %d ranks", c.recv, c.dst, ranks)
		}
	case "ReduceScatter":
		if len(c.send) != ranks || !fits(c.src, sum(c.send)) {
			return fmt.Errorf("ReduceScatter of %v does not fit %s or %d ranks", c.send, c.src, ranks)
		}
	}
	return nil
}

func (h *hub) differ(r int, what string) error {
	a, b := h.calls[0], h.calls[r]
	return &Error{Text: fmt.Sprintf("%s: ranks 0 and %d disagree in %s: %s %s at %s, %s %s at %s",
		h.name, r, what, a.op, a.src, where(a.site), b.op, b.src, where(b.site))}
}

// Waiting implements Comm.
func (l *localEnd) Waiting() string {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.hub.waits[l.rank]
}

// dump lists who waits where.
func (h *hub) dump() string {
	s := ""
	for r, c := range h.calls {
		if c != nil {
			s += fmt.Sprintf("[rank %d %s at %s]", r, c.op, where(c.site))
		}
	}
	for k, p := range h.posts {
		s += fmt.Sprintf("[rank %d sends to %d at %s]", k[0], k[1], where(p.site))
	}
	return s
}

// caller is the code address that called the Comm method.
func caller() uintptr {
	var pc [1]uintptr
	runtime.Callers(3, pc[:])
	return pc[0]
}

func where(pc uintptr) string {
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return fmt.Sprintf("%s:%d", f.Function, f.Line)
}

func sum(v []int) int {
	n := 0
	for _, x := range v {
		n += x
	}
	return n
}

// copyElements copies n elements between host tensors that are contiguous.
func copyElements(dst engine.Tensor, at int, src engine.Tensor, off, n int) {
	if n == 0 {
		return
	}
	s := dst.DType.Size()
	copy(dst.Buf.Host[(dst.Off+at)*s:(dst.Off+at+n)*s], src.Buf.Host[(src.Off+off)*s:(src.Off+off+n)*s])
}

// addElements stores in dst the sum over calls of n elements from off, in rank order.
func addElements(dst engine.Tensor, calls []*localCall, off, n int) {
	if n == 0 {
		return
	}
	switch dst.DType {
	case engine.F64:
		add(host[float64](dst, 0, n), calls, off)
	case engine.BF16:
		addNarrow(dst, calls, off, n)
	default:
		add(host[float32](dst, 0, n), calls, off)
	}
}

// addNarrow is addElements for bf16: summed in f32, rounded once.
func addNarrow(dst engine.Tensor, calls []*localCall, off, n int) {
	const chunk = 4096
	total, part := make([]float32, chunk), make([]float32, chunk)
	bytes := func(t engine.Tensor, at, m int) []byte { return t.Buf.Host[2*(t.Off+at) : 2*(t.Off+at+m)] }
	for at := 0; at < n; at += chunk {
		m := min(chunk, n-at)
		clear(total[:m])
		for _, c := range calls {
			engine.Widen(part[:m], bytes(c.src, off+at, m), engine.BF16)
			for i, v := range part[:m] {
				total[i] += v
			}
		}
		engine.Narrow(bytes(dst, at, m), total[:m], engine.BF16)
	}
}

func add[T float32 | float64](out []T, calls []*localCall, off int) {
	clear(out)
	for _, c := range calls {
		for i, v := range host[T](c.src, off, len(out)) {
			out[i] += v
		}
	}
}

// host views n elements of a contiguous host tensor.
func host[T float32 | float64](t engine.Tensor, off, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(&t.Buf.Host[(t.Off+off)*t.DType.Size()])), n)
}
