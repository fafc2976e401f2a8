package stream

import (
	"fmt"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm"
)

// end is one rank's end of a group.
type end struct {
	*members
	rank     int
	device   *cuda.Ops // where tensors lie; nil: in host memory
	traffic  comm.Traffic
	prefetch *comm.Call // under way
	arrive   func()     // puts what it has brought where it belongs
	over     chan any   // gets what the prefetch panicked with, nil if it did not
}

// Rank implements comm.Comm.
func (e *end) Rank() int { return e.rank }

// Size implements comm.Comm.
func (e *end) Size() int { return len(e.process) }

// Traffic implements comm.Comm.
func (e *end) Traffic() comm.Traffic { return e.traffic }

// Waiting implements comm.Comm.
func (e *end) Waiting() string { return e.members.Waiting(e.rank) }

// Abort implements comm.Comm: ranks in other processes are told the text of cause.
func (e *end) Abort(cause error) {
	var first error
	e.Locked(func() error {
		first = e.Cause()
		return nil
	})
	e.members.Abort(cause)
	if first != nil {
		return // everybody knows
	}
	told := map[int]bool{e.mesh.self: true}
	for _, p := range e.process {
		if !told[p] {
			told[p] = true
			f := frame{group: e.key, kind: abort, from: uint16(e.rank), payload: []byte(cause.Error())}
			_ = e.mesh.send(p, &f) // a process that has gone needs not be told
		}
	}
}

// send brings n elements of a tensor from off to another rank.
func (e *end) send(k kind, to int, op, site string, t engine.Tensor, off, n int) {
	f := frame{
		group: e.key, kind: k, from: uint16(e.rank), to: uint16(to), op: op, site: site, dtype: t.DType,
		payload: bytes(t, off, n),
	}
	if err := e.mesh.send(e.process[to], &f); err != nil {
		e.Locked(func() error { // why the group was aborted says more
			if cause := e.Cause(); cause != nil {
				return &comm.Error{Text: fmt.Sprintf("%s: rank %d cannot send", e.name, e.rank), Cause: cause}
			}
			return err
		})
	}
}

// part takes another rank's part of a collective, n elements, which the caller is done with in the end.
func (e *end) part(c *comm.Call, from, n int) *frame {
	f, err := e.await(way{from, e.rank, true}, e.rank, c.Op)
	if err != nil {
		panic(err)
	}
	if f.op != c.Op || f.dtype != c.Src.DType || len(f.payload) != n*f.dtype.Size() {
		defer f.done()
		panic(e.broken("ranks %d and %d disagree: %s, %s at %s, which takes %s[%d]", from, e.rank, f, c.Op, c.At(),
			c.Src.DType, n))
	}
	return f
}

// copyPart puts another rank's part of a collective into n elements of the destination from at.
func (e *end) copyPart(c *comm.Call, at, from, n int) {
	f := e.part(c, from, n)
	copy(bytes(c.Dst, at, n), f.payload)
	f.done()
}

// run carries out a collective and counts it.
func (e *end) run(c *comm.Call) {
	start := time.Now()
	own, arrive := e.staged(c)
	e.exchange(own)
	arrive()
	e.count(c, start)
}

func (e *end) count(c *comm.Call, start time.Time) {
	e.traffic.Sent(c.Sent(e.rank, e.Size()), c.Src.DType)
	e.traffic.Wait += time.Since(start)
}

func (e *end) exchange(c *comm.Call) {
	if err := c.Sizes(e.Size()); err != nil {
		panic(e.broken("rank %d at %s: %v", e.rank, c.At(), err))
	}
	switch c.Op {
	case "AllToAll":
		e.scatter(c, c.Send)
		e.collect(c, c.Recv)
	case "AllGather":
		e.spread(c, c.Src, c.Recv[e.rank])
		e.collect(c, c.Recv)
	case "ReduceScatter":
		e.scatter(c, c.Send)
		e.sum(c, c.Dst, c.Send)
	default: // each rank sums its part, then everybody gets all parts
		counts := make([]int, e.Size())
		for r, n := 0, c.Src.Len(); r < len(counts); r++ {
			counts[r] = n*(r+1)/len(counts) - n*r/len(counts)
		}
		own := elements(c.Dst, sum(counts[:e.rank]), counts[e.rank])
		e.scatter(c, counts)
		e.sum(c, own, counts)
		e.spread(c, own, own.Len())
		at := 0
		for peer, n := range counts {
			if peer != e.rank {
				e.copyPart(c, at, peer, n)
			}
			at += n
		}
	}
}

// scatter sends counts[i] elements of the source to rank i, in rank order.
func (e *end) scatter(c *comm.Call, counts []int) {
	at := 0
	for peer, n := range counts {
		if peer != e.rank {
			e.send(collective, peer, c.Op, c.At(), c.Src, at, n)
		}
		at += n
	}
}

// spread sends n elements to all others.
func (e *end) spread(c *comm.Call, t engine.Tensor, n int) {
	for peer := range e.process {
		if peer != e.rank {
			e.send(collective, peer, c.Op, c.At(), t, 0, n)
		}
	}
}

// collect puts counts[i] elements from rank i into the destination, in rank order.
func (e *end) collect(c *comm.Call, counts []int) {
	at := 0
	for peer, n := range counts {
		if peer != e.rank {
			e.copyPart(c, at, peer, n)
		} else {
			off := 0
			if c.Op == "AllToAll" {
				off = sum(c.Send[:e.rank])
			}
			copy(bytes(c.Dst, at, n), bytes(c.Src, off, n))
		}
		at += n
	}
}

// sum adds up what all ranks have for this one, in rank order.
func (e *end) sum(c *comm.Call, dst engine.Tensor, counts []int) {
	n, parts := counts[e.rank], make([]engine.Tensor, e.Size())
	for peer := range parts {
		if peer == e.rank {
			parts[peer] = elements(c.Src, sum(counts[:e.rank]), n)
			continue
		}
		f := e.part(c, peer, n)
		defer f.done()
		parts[peer] = engine.NewTensor(engine.Buf{Host: f.payload}, c.Src.DType, n)
	}
	if n > 0 {
		total := engine.NewTensor(engine.Buf{Host: make([]byte, n*dst.DType.Size())}, dst.DType, n)
		comm.Sum(total, parts) // dst may be one of them
		copy(bytes(dst, 0, n), total.Buf.Host)
	}
}

func sum(v []int) (n int) {
	for _, x := range v {
		n += x
	}
	return n
}

// AllToAll implements comm.Comm.
func (e *end) AllToAll(dst, src engine.Tensor, recv, send []int) {
	e.run(comm.NewAllToAll(dst, src, recv, send))
}

// AllGather implements comm.Comm.
func (e *end) AllGather(dst, src engine.Tensor, counts []int) {
	e.run(comm.NewAllGather(dst, src, counts))
}

// ReduceScatter implements comm.Comm.
func (e *end) ReduceScatter(dst, src engine.Tensor, counts []int) {
	e.run(comm.NewReduceScatter(dst, src, counts))
}

// AllReduce implements comm.Comm.
func (e *end) AllReduce(buf engine.Tensor) { e.run(comm.NewAllReduce(buf)) }

// Prefetch implements comm.Comm.
func (e *end) Prefetch(dst, src engine.Tensor, counts []int) {
	e.begin(comm.NewAllGather(dst, src, counts))
}

// Exchange implements comm.Comm.
func (e *end) Exchange(dst, src engine.Tensor, recv, send []int) {
	e.begin(comm.NewAllToAll(dst, src, recv, send))
}

// begin runs a collective in a goroutine of its own.
func (e *end) begin(c *comm.Call) {
	e.prefetch, e.over = c, make(chan any, 1)
	var own *comm.Call
	own, e.arrive = e.staged(e.prefetch)
	go func() {
		defer func() { e.over <- recover() }()
		e.exchange(own)
	}()
}

// Fetched implements comm.Comm.
func (e *end) Fetched() {
	start := time.Now()
	if v := <-e.over; v != nil {
		panic(v)
	}
	e.arrive()
	e.count(e.prefetch, start)
}
