package nccl

import (
	"slices"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm"
)

func (e *end) Run(c *comm.Call) {
	e.counted(c)
	e.collective(c, e.stream)
}

// Begin implements comm.Comm on a separate stream.
func (e *end) Begin(c *comm.Call) {
	e.counted(c)
	on := e.aside(&e.async)
	follow(on, e.stream)
	e.collective(c, on)
}

func (e *end) Fetched() {
	e.alive()
	if e.async != nil {
		follow(e.stream, e.async)
	}
}

// counted compares a call with those of the peers and counts its traffic.
func (e *end) counted(c *comm.Call) {
	e.compared(func(g *members) error { return g.note(e, c) })
	e.Sent(c.Sent(e.Rank(), e.Size()), c.Src.DType)
}

// collective issues a call on a stream.
func (e *end) collective(c *comm.Call, on *cuda.Ops) {
	switch c.Op {
	case "AllToAll":
		e.exchange(c.Op, on, parts(c.Dst, c.Recv), parts(c.Src, c.Send))
	case "AllGather":
		e.gather(c, on)
	case "ReduceScatter":
		if w := e.group.wires; e.Size() == 2 && even(c.Send) { // a + b is b + a
			dst, src := comm.Piece(c.Dst, 0, c.Send[0]), comm.Piece(c.Src, 0, 2*c.Send[0])
			e.issue(c.Op, w.all, e.Rank(), on, func() (bool, error) {
				return w.all.ReduceScatter(e.Rank(), on.Stream, dst, src)
			})
			return
		}
		e.scatter(c.Op, on, c.Dst, parts(c.Src, c.Send))
	default:
		e.reduce(c, on)
	}
}

// exchange sends src[i] to rank i and receives dst[i] from it; the rank's own part is copied. It clears the own
// elements of dst and src.
func (e *end) exchange(what string, on *cuda.Ops, dst, src []engine.Tensor) {
	rank := e.Rank()
	if part := dst[rank]; !part.IsZero() && part.Len() > 0 {
		on.Take(part, src[rank], on.Stream)
	}
	dst[rank], src[rank] = engine.Tensor{}, engine.Tensor{}
	if e.group.wires == nil {
		return
	}
	all := e.group.wires.all
	e.issue(what, all, rank, on, func() (bool, error) { return all.Exchange(rank, on.Stream, src, dst) })
}

func parts(t engine.Tensor, counts []int) []engine.Tensor {
	out, at := make([]engine.Tensor, len(counts)), 0
	for i, n := range counts {
		if n > 0 {
			out[i] = comm.Piece(t, at, n)
		}
		at += n
	}
	return out
}

// even reports whether all counts are equal and not 0.
func even(counts []int) bool {
	return counts[0] > 0 && !slices.ContainsFunc(counts, func(n int) bool { return n != counts[0] })
}

// gather gathers the sources of all ranks, with NCCL's AllGather if they are equally long.
func (e *end) gather(c *comm.Call, on *cuda.Ops) {
	n := c.Recv[e.Rank()]
	if e.Size() > 1 && even(c.Recv) {
		all, dst, src := e.group.wires.all, comm.Piece(c.Dst, 0, n*e.Size()), comm.Piece(c.Src, 0, n)
		e.issue(c.Op, all, e.Rank(), on, func() (bool, error) { return all.AllGather(e.Rank(), on.Stream, dst, src) })
		return
	}
	out := make([]engine.Tensor, e.Size())
	if n > 0 {
		out = slices.Repeat([]engine.Tensor{comm.Piece(c.Src, 0, n)}, e.Size())
	}
	e.exchange(c.Op, on, parts(c.Dst, c.Recv), out)
}

// reduce performs an AllReduce: every rank sums its share, then the shares are gathered.
func (e *end) reduce(c *comm.Call, on *cuda.Ops) {
	buf := c.Dst
	if buf.Len() == 0 || e.Size() == 1 {
		return
	}
	if all := e.group.wires.all; e.Size() == 2 {
		e.issue(c.Op, all, e.Rank(), on, func() (bool, error) { return all.AllReduce(e.Rank(), on.Stream, buf) })
		return
	}
	shares := comm.Shares(buf.Len(), e.Size())
	share, everyone := parts(buf, shares)[e.Rank()], parts(buf, shares)
	e.scatter(c.Op, on, share, parts(buf, shares))
	everyone[e.Rank()] = engine.Tensor{} // already in place
	e.exchange(c.Op, on, everyone, slices.Repeat([]engine.Tensor{share}, e.Size()))
}

// scatter receives this rank's part of all ranks' sources into scratch memory of its stream and adds the parts in rank
// order into dst, which may be that part of its own source.
func (e *end) scatter(what string, on *cuda.Ops, dst engine.Tensor, src []engine.Tensor) {
	part := src[e.Rank()]
	n, size := 0, e.Size()
	if !part.IsZero() {
		n = part.Len()
	}
	in := make([]engine.Tensor, size)
	if n > 0 && size > 1 {
		each := (n + 7) / 8 * 8 // parts are as aligned as the memory
		inbox, err := on.Inbox(size * each * part.DType.Size())
		if err != nil {
			e.fail(&comm.Error{Text: e.Name + ": memory to add up in", Cause: err})
		}
		room := engine.NewTensor(inbox, part.DType, size*each)
		for p := range in {
			if p != e.Rank() {
				in[p] = comm.Piece(room, p*each, n)
			}
		}
	}
	sum := slices.Clone(in)
	sum[e.Rank()] = part
	e.exchange(what, on, in, src)
	if n > 0 {
		on.Sum(comm.Piece(dst, 0, n), sum, slices.Repeat([]*cuda.Ops{on}, size))
	}
}
