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
	comm.Seat
	group  *members
	device *cuda.Ops              // device that holds the rank's tensors; nil: they are in host memory
	posts  map[int][]comm.Message // posted memory by sender, not awaited yet, oldest first
	arrive func()                 // stores the result of the collective started by Begin
	over   chan any               // receives its panic value, or nil
}

// Abort implements comm.Comm. Ranks in other processes get only the text of cause.
func (e *end) Abort(cause error) {
	if !e.End(cause) {
		return // all processes have been notified
	}
	g := e.group
	notified := map[int]bool{g.mesh.self: true}
	for _, p := range g.process {
		if !notified[p] {
			notified[p] = true
			f := frame{group: g.key, kind: abort, from: uint16(e.Rank()), payload: []byte(cause.Error())}
			_ = g.mesh.send(p, &f) // a process that has ended needs no message
		}
	}
}

// send sends a contiguous tensor in host memory to another rank.
func (e *end) send(k kind, to int, op string, at comm.Site, t engine.Tensor) {
	f := frame{
		group: e.group.key, kind: k, from: uint16(e.Rank()), to: uint16(to), op: op, site: at.String(), dtype: t.DType,
		payload: comm.HostBytes(t, 0, t.Len()),
	}
	err := e.group.mesh.send(e.group.process[to], &f)
	if cause := e.Cause(); err != nil && cause != nil { // the reason why the group has ended says more
		err = &comm.Error{Text: fmt.Sprintf("%s: rank %d cannot send", e.Name, e.Rank()), Cause: cause}
	}
	if err != nil {
		panic(err)
	}
}

// await waits for the oldest frame of a way and returns it; what names what the rank waits for.
func (e *end) await(w way, what string) (f *frame) {
	g := e.group
	e.Do(func() error {
		if err := e.Wait(what, func() bool { return len(g.arrived[w]) > 0 }); err != nil {
			return err
		}
		f, g.arrived[w] = g.arrived[w][0], g.arrived[w][1:]
		return nil
	})
	return f
}

// fail ends the group in all processes, and panics with err.
func (e *end) fail(err error) {
	e.Abort(err)
	panic(err)
}

// part takes another rank's part of a collective, n elements.
func (e *end) part(c *comm.Call, from, n int) *frame {
	f := e.await(way{from, e.Rank(), true}, c.Op)
	if f.op != c.Op || f.dtype != c.Src.DType || len(f.payload) != n*f.dtype.Size() {
		e.fail(e.Errorf("ranks %d and %d disagree: %s, %s at %s, which takes %s[%d]", from, e.Rank(), f, c.Op, c.Site,
			c.Src.DType, n))
	}
	return f
}

func (e *end) Run(c *comm.Call) {
	defer e.Spent(time.Now())
	staged, arrive := e.staged(c)
	e.exchange(staged)
	arrive()
}

// Begin implements comm.Comm with a goroutine.
func (e *end) Begin(c *comm.Call) {
	var staged *comm.Call
	staged, e.arrive = e.staged(c)
	e.over = make(chan any, 1)
	go func() {
		defer func() { e.over <- recover() }()
		e.exchange(staged)
	}()
}

func (e *end) Fetched() {
	defer e.Spent(time.Now())
	if v := <-e.over; v != nil {
		panic(v)
	}
	e.arrive()
}

func (e *end) exchange(c *comm.Call) {
	switch c.Op {
	case "AllToAll":
		e.scatter(c, c.Send)
		e.collect(c, c.Recv, comm.Total(c.Send[:e.Rank()]))
	case "AllGather":
		e.spread(c, comm.Piece(c.Src, 0, c.Recv[e.Rank()]))
		e.collect(c, c.Recv, 0)
	case "ReduceScatter":
		e.scatter(c, c.Send)
		e.sum(c, c.Dst, c.Send)
	default: // AllReduce: each rank sums its part, then all ranks get all parts
		counts := comm.Shares(c.Src.Len(), e.Size())
		at := comm.Total(counts[:e.Rank()])
		share := comm.Piece(c.Dst, at, counts[e.Rank()])
		e.scatter(c, counts)
		e.sum(c, share, counts)
		e.spread(c, share)
		e.collect(c, counts, at)
	}
}

// scatter sends counts[i] elements of the source to rank i, in rank order.
func (e *end) scatter(c *comm.Call, counts []int) {
	at := 0
	for peer, n := range counts {
		if peer != e.Rank() {
			e.send(collective, peer, c.Op, c.Site, comm.Piece(c.Src, at, n))
		}
		at += n
	}
}

// spread sends a tensor to all other ranks.
func (e *end) spread(c *comm.Call, t engine.Tensor) {
	for peer := range e.Size() {
		if peer != e.Rank() {
			e.send(collective, peer, c.Op, c.Site, t)
		}
	}
}

// collect receives counts[i] elements from rank i into the destination, in rank order. The rank's own part is copied
// from the source, from element start on.
func (e *end) collect(c *comm.Call, counts []int, start int) {
	at := 0
	for peer, n := range counts {
		to := comm.HostBytes(c.Dst, at, n)
		if at += n; peer == e.Rank() {
			copy(to, comm.HostBytes(c.Src, start, n))
			continue
		}
		copy(to, e.part(c, peer, n).payload)
	}
}

// sum adds all ranks' parts for this rank into dst, in rank order.
func (e *end) sum(c *comm.Call, dst engine.Tensor, counts []int) {
	n, parts := counts[e.Rank()], make([]engine.Tensor, e.Size())
	for peer := range parts {
		if peer == e.Rank() {
			parts[peer] = comm.Piece(c.Src, comm.Total(counts[:peer]), n)
			continue
		}
		parts[peer] = engine.NewTensor(engine.Buf{Host: e.part(c, peer, n).payload}, c.Src.DType, n)
	}
	total := hostTensor(dst.DType, n) // dst may overlap one of the parts
	comm.Sum(total, parts)
	copy(comm.HostBytes(dst, 0, n), total.Buf.Host)
}
