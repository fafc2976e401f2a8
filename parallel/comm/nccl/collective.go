package nccl

import (
	"slices"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// collective compares a call with those of the peers, counts it and runs it.
func (e *end) collective(c *comm.Call, run func()) {
	e.compared(func(g *group) error { return g.note(e, c) })
	e.count(func(t *comm.Traffic) { t.Sent(c.Sent(e.rank, e.Size()), c.Src.DType) })
	run()
}

// exchange sends parts to the ranks they are numbered by and receives parts from them; the own one is a copy.
func (e *end) exchange(what string, on *driver.Stream, dst, src []engine.Tensor) {
	if own := dst[e.rank]; !own.IsZero() && own.Len() > 0 {
		on.Take(own, src[e.rank], on)
	}
	dst[e.rank], src[e.rank] = engine.Tensor{}, engine.Tensor{}
	if e.group.wires == nil {
		return
	}
	all := e.group.wires.all
	e.issue(what, all, e.rank, on, func() (bool, error) { return all.Exchange(e.rank, on, src, dst) })
}

// parts cuts a tensor by counts.
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

// even reports whether all counts are the same and not 0.
func even(counts []int) bool {
	return counts[0] > 0 && !slices.ContainsFunc(counts, func(n int) bool { return n != counts[0] })
}

// AllToAll implements comm.Comm.
func (e *end) AllToAll(dst, src engine.Tensor, recv, send []int) {
	e.collective(comm.NewAllToAll(dst, src, recv, send), func() {
		e.exchange("AllToAll", e.stream, parts(dst, recv), parts(src, send))
	})
}

// AllGather implements comm.Comm.
func (e *end) AllGather(dst, src engine.Tensor, counts []int) {
	e.collective(comm.NewAllGather(dst, src, counts), func() { e.gather("AllGather", e.stream, dst, src, counts) })
}

// gather brings the sources of all ranks together: by NCCL's own where they are equally long.
func (e *end) gather(what string, on *driver.Stream, dst, src engine.Tensor, counts []int) {
	if e.Size() > 1 && even(counts) {
		all, n := e.group.wires.all, counts[0]
		dst, src := comm.Piece(dst, 0, n*e.Size()), comm.Piece(src, 0, n)
		e.issue(what, all, e.rank, on, func() (bool, error) { return all.AllGather(e.rank, on, dst, src) })
		return
	}
	out := make([]engine.Tensor, e.Size())
	if n := counts[e.rank]; n > 0 {
		for p := range out {
			out[p] = comm.Piece(src, 0, n)
		}
	}
	e.exchange(what, on, parts(dst, counts), out)
}

// Prefetch implements comm.Comm on a stream of its own.
func (e *end) Prefetch(dst, src engine.Tensor, counts []int) {
	e.collective(comm.NewAllGather(dst, src, counts), func() {
		on := e.aside(&e.beside)
		follow(on, e.stream)
		e.gather("Prefetch", on, dst, src, counts)
	})
}

// Exchange implements comm.Comm on a stream of its own.
func (e *end) Exchange(dst, src engine.Tensor, recv, send []int) {
	e.collective(comm.NewAllToAll(dst, src, recv, send), func() {
		on := e.aside(&e.beside)
		follow(on, e.stream)
		e.exchange("Exchange", on, parts(dst, recv), parts(src, send))
	})
}

// Fetched implements comm.Comm.
func (e *end) Fetched() {
	e.alive()
	if e.beside != nil {
		follow(e.stream, e.beside)
	}
}

// ReduceScatter implements comm.Comm.
func (e *end) ReduceScatter(dst, src engine.Tensor, counts []int) {
	e.collective(comm.NewReduceScatter(dst, src, counts), func() {
		if all := e.group.wires; e.Size() == 2 && even(counts) { // a + b is b + a
			dst, src := comm.Piece(dst, 0, counts[0]), comm.Piece(src, 0, 2*counts[0])
			e.issue("ReduceScatter", all.all, e.rank, e.stream, func() (bool, error) {
				return all.all.ReduceScatter(e.rank, e.stream, dst, src)
			})
			return
		}
		e.scatter("ReduceScatter", dst, parts(src, counts))
	})
}

// AllReduce implements comm.Comm: every rank sums its share, and then they gather.
func (e *end) AllReduce(buf engine.Tensor) {
	e.collective(comm.NewAllReduce(buf), func() {
		if buf.Len() == 0 || e.Size() == 1 {
			return
		}
		if all := e.group.wires.all; e.Size() == 2 {
			e.issue("AllReduce", all, e.rank, e.stream, func() (bool, error) { return all.AllReduce(e.rank, e.stream, buf) })
			return
		}
		shares := func() []engine.Tensor {
			out := make([]engine.Tensor, e.Size())
			for r := range out {
				out[r] = comm.Share(buf, r, e.Size())
			}
			return out
		}
		own := shares()[e.rank]
		e.scatter("AllReduce", own, shares())
		everyone, sums := shares(), slices.Repeat([]engine.Tensor{own}, e.Size())
		everyone[e.rank] = engine.Tensor{} // is there
		e.exchange("AllReduce", e.stream, everyone, sums)
	})
}

// scatter brings this rank's part of the sources of all ranks into memory of its stream and adds them up in rank order.
// dst may be that part of its own source.
func (e *end) scatter(what string, dst engine.Tensor, src []engine.Tensor) {
	own := src[e.rank]
	n, size := 0, e.Size()
	if !own.IsZero() {
		n = own.Len()
	}
	in := make([]engine.Tensor, size)
	if n > 0 && size > 1 {
		each := (n + 7) / 8 * 8 // parts are as aligned as the memory
		inbox, err := e.stream.Inbox(size * each * own.DType.Size())
		if err != nil {
			e.fail(&comm.Error{Text: e.group.name + ": memory to add up in", Cause: err})
		}
		room := engine.NewTensor(inbox, own.DType, size*each)
		for p := range in {
			if p != e.rank {
				in[p] = comm.Piece(room, p*each, n)
			}
		}
	}
	sum := slices.Clone(in)
	sum[e.rank] = own
	e.exchange(what, e.stream, in, src)
	if n > 0 {
		e.ops.Sum(comm.Piece(dst, 0, n), sum, slices.Repeat([]*cuda.Ops{e.ops}, size))
	}
}
