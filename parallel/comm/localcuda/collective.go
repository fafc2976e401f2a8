package localcuda

import (
	"slices"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// call is one rank's part of a collective and the stream that it goes on; ready is where that rank's memory may be read
// and written.
type call struct {
	*comm.Call
	stream *cuda.Ops
	ready  driver.Point
}

// AllToAll implements comm.Comm.
func (e *end) AllToAll(dst, src engine.Tensor, recv, send []int) {
	e.collective(comm.NewAllToAll(dst, src, recv, send))
}

// AllGather implements comm.Comm.
func (e *end) AllGather(dst, src engine.Tensor, counts []int) {
	e.collective(comm.NewAllGather(dst, src, counts))
}

// ReduceScatter implements comm.Comm.
func (e *end) ReduceScatter(dst, src engine.Tensor, counts []int) {
	e.collective(comm.NewReduceScatter(dst, src, counts))
}

// AllReduce implements comm.Comm.
func (e *end) AllReduce(buf engine.Tensor) { e.collective(comm.NewAllReduce(buf)) }

// collective issues this rank's part and waits until all others have issued theirs.
func (e *end) collective(c *comm.Call) {
	e.locked(func() error {
		round, err := e.issue(&call{Call: c, stream: e.stream})
		if err != nil {
			return err
		}
		return e.met(c.Op, round)
	})
}

// Prefetch implements comm.Comm.
func (e *end) Prefetch(dst, src engine.Tensor, counts []int) {
	e.begin(comm.NewAllGather(dst, src, counts))
}

// Exchange implements comm.Comm.
func (e *end) Exchange(dst, src engine.Tensor, recv, send []int) {
	e.begin(comm.NewAllToAll(dst, src, recv, send))
}

// begin issues a collective on a stream of its own.
func (e *end) begin(of *comm.Call) {
	c := &call{Call: of}
	e.locked(func() (err error) {
		if e.beside == nil {
			if e.beside, err = e.stream.Beside(); err != nil {
				return e.group.Fail(err)
			}
		}
		here := e.stream.Record()
		e.beside.After(here)
		e.stream.Forget(here)
		c.stream = e.beside
		e.prefetch, err = e.issue(c)
		return err
	})
}

// Fetched implements comm.Comm.
func (e *end) Fetched() {
	e.locked(func() error {
		if err := e.met("Prefetch", e.prefetch); err != nil {
			return err
		}
		over := e.beside.Record()
		e.stream.After(over)
		e.stream.Forget(over)
		return e.group.failed(e.beside)
	})
}

// issue posts this rank's part and returns the round that the collective ends with. The last rank to come enqueues the
// work of all: the others stand still, and so do their streams.
func (e *end) issue(c *call) (round int, err error) {
	g := e.group
	c.ready = c.stream.Record()
	e.traffic.Sent(c.Sent(e.rank, e.Size()), c.Src.DType)
	g.calls[e.rank] = c
	if slices.Contains(g.calls, nil) || g.Cause() != nil {
		return g.round + 1, nil
	}
	calls := make([]*comm.Call, len(g.calls))
	for r, c := range g.calls {
		calls[r] = c.Call
	}
	if err := comm.Check(g.name, calls); err != nil {
		return 0, g.Fail(err)
	}
	if err := g.run(g.calls, calls); err != nil {
		return 0, err
	}
	g.calls = make([]*call, len(g.ends))
	g.round++
	g.Moved()
	return g.round, nil
}

// met waits until a round is over.
func (e *end) met(op string, round int) error {
	return e.group.Wait(e.rank, op, func() bool { return e.group.round >= round })
}

// run enqueues a collective on the streams of all ranks.
func (g *group) run(parts []*call, calls []*comm.Call) error {
	streams := make([]*cuda.Ops, len(parts))
	ready := make([]driver.Point, len(parts))
	for r, p := range parts {
		streams[r], ready[r] = p.stream, p.ready
	}
	meet(streams, ready)
	for r, c := range calls {
		s := streams[r]
		switch c.Op {
		case "ReduceScatter":
			g.sum(s, c.Dst, calls, slices.Concat([]int{0}, c.Send), r)
		case "AllReduce": // every rank sums its share, in place: only it reads and writes that share of its own memory
			own := comm.Share(c.Dst, r, len(calls))
			g.sumOf(s, own, shares(calls, r))
		default:
			c.Pieces(r, calls, func(at, peer, off, n int) {
				if n > 0 {
					s.Take(comm.Piece(c.Dst, at, n), comm.Piece(calls[peer].Src, off, n), g.streams[peer].Stream)
				}
			})
		}
	}
	meet(streams, record(streams))
	if calls[0].Op == "AllReduce" { // and takes the sums of the others
		for r, c := range calls {
			for p := range calls {
				if mine := comm.Share(c.Dst, p, len(calls)); p != r && mine.Len() > 0 {
					streams[r].Take(mine, comm.Share(calls[p].Dst, p, len(calls)), g.streams[p].Stream)
				}
			}
		}
		meet(streams, record(streams))
	}
	return g.failed(streams...)
}

// record returns the ends of all streams.
func record(streams []*cuda.Ops) []driver.Point {
	out := make([]driver.Point, len(streams))
	for r, s := range streams {
		out[r] = s.Record()
	}
	return out
}

// meet holds every stream back until all have come to their points.
func meet(streams []*cuda.Ops, at []driver.Point) {
	for r, s := range streams {
		for p, point := range at {
			if p != r {
				s.After(point)
			}
		}
	}
	for r, s := range streams {
		s.Forget(at[r])
	}
}

// sum adds part r of the sources of all ranks, where before counts the elements of each part behind a leading 0.
func (g *group) sum(s *cuda.Ops, dst engine.Tensor, calls []*comm.Call, before []int, r int) {
	from, n := 0, before[r+1]
	for _, k := range before[:r+1] {
		from += k
	}
	if n == 0 {
		return
	}
	parts := make([]engine.Tensor, len(calls))
	for p, c := range calls {
		parts[p] = comm.Piece(c.Src, from, n)
	}
	g.sumOf(s, comm.Piece(dst, 0, n), parts)
}

// sumOf adds parts, one of each rank.
func (g *group) sumOf(s *cuda.Ops, dst engine.Tensor, parts []engine.Tensor) {
	if dst.Len() > 0 {
		s.Sum(dst, parts, g.streams)
	}
}

// shares are share r of the memory of all ranks.
func shares(calls []*comm.Call, r int) []engine.Tensor {
	out := make([]engine.Tensor, len(calls))
	for p, c := range calls {
		out[p] = comm.Share(c.Dst, r, len(calls))
	}
	return out
}
