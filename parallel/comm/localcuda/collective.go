package localcuda

import (
	"slices"

	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// Run implements comm.Comm: it issues this rank's part and waits until all others have issued theirs.
func (e *end) Run(c *comm.Call) {
	e.do(func() error {
		if err := e.issue(c, e.stream); err != nil {
			return err
		}
		return e.met(c.Op)
	})
	e.Sent(c.Sent(e.Rank(), e.Size()), c.Src.DType)
}

// Begin implements comm.Comm on a separate stream.
func (e *end) Begin(c *comm.Call) {
	e.do(func() (err error) {
		if e.async == nil {
			if e.async, err = e.stream.Beside(); err != nil {
				return err
			}
		}
		event := e.stream.Record()
		e.async.After(event)
		e.stream.Forget(event)
		return e.issue(c, e.async)
	})
	e.Sent(c.Sent(e.Rank(), e.Size()), c.Src.DType)
}

func (e *end) Fetched() {
	e.do(func() error {
		if err := e.met("what was begun"); err != nil {
			return err
		}
		over := e.async.Record()
		e.stream.After(over)
		e.stream.Forget(over)
		return e.group.failed(e.async)
	})
}

// issue posts this rank's part on a stream. The last rank to arrive enqueues the work of all: the other ranks do not
// touch the streams of their parts meanwhile.
func (e *end) issue(c *comm.Call, on *cuda.Ops) error {
	g, r := e.group, e.Rank()
	e.begun = g.round + 1
	g.calls[r], g.on[r], g.ready[r] = c, on, on.Record()
	if slices.Contains(g.calls, nil) {
		return nil
	}
	if err := comm.Check(g.Name, g.calls); err != nil {
		return err
	}
	if err := g.run(g.calls, g.on, g.ready); err != nil {
		return err
	}
	clear(g.calls)
	g.round++
	g.WakeAll()
	return nil
}

// met waits until the round of this rank's last part is complete. The caller must hold the lock.
func (e *end) met(what string) error {
	return e.Wait(what, func() bool { return e.group.round >= e.begun })
}

// run enqueues a collective on the streams of all ranks, each after the points at which all ranks' memory is ready.
func (g *group) run(calls []*comm.Call, streams []*cuda.Ops, ready []driver.Point) error {
	meet(streams, ready)
	counts := comm.Shares(calls[0].Src.Len(), len(calls)) // used by AllReduce
	for r, c := range calls {
		s := streams[r]
		switch c.Op {
		case "ReduceScatter":
			g.sum(r, s, calls, 0, c.Send)
		case "AllReduce": // every rank sums its share in place: no other rank reads or writes that share of its memory
			g.sum(r, s, calls, comm.Total(counts[:r]), counts)
		default:
			c.Pieces(r, calls, func(at, peer, off, n int) { g.take(s, c, at, calls[peer], off, peer, n) })
		}
	}
	meet(streams, record(streams))
	if calls[0].Op == "AllReduce" { // then it copies the other ranks' shares
		for r, c := range calls {
			for p, n := range counts {
				if at := comm.Total(counts[:p]); p != r {
					g.take(streams[r], c, at, calls[p], at, p, n)
				}
			}
		}
		meet(streams, record(streams))
	}
	return g.failed(streams...)
}

// take copies n elements from the source of call of, of rank from, to element at of c's destination.
func (g *group) take(s *cuda.Ops, c *comm.Call, at int, of *comm.Call, off, from, n int) {
	if n > 0 {
		s.Take(comm.Piece(c.Dst, at, n), comm.Piece(of.Src, off, n), g.streams[from].Stream)
	}
}

// sum adds part r (cut by counts) of the sources of all ranks into the destination of rank r, from element at on.
func (g *group) sum(r int, s *cuda.Ops, calls []*comm.Call, at int, counts []int) {
	if n := counts[r]; n > 0 {
		s.Sum(comm.Piece(calls[r].Dst, at, n), comm.Sources(calls, comm.Total(counts[:r]), n), g.streams)
	}
}

// record returns the current ends of all streams.
func record(streams []*cuda.Ops) []driver.Point {
	out := make([]driver.Point, len(streams))
	for r, s := range streams {
		out[r] = s.Record()
	}
	return out
}

// meet makes every stream wait until all others have reached their points.
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
