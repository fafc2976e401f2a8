package rank

import (
	"slices"
	"time"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

// prefetcher brings the weights of one rank's model unit by unit (dit.Shards).
type prefetcher struct {
	shards    *dit.Shards
	open      func(unit int, yes bool)
	slots     [2]engine.Buf
	stagings  [2]engine.Buf
	comm      comm.Comm
	host      hostReader
	gathering bool // a gather runs beside what the rank computes; there is at most one
	gathered  int  // unit of the last gather
	plan      *plan.Gathers
	opened    int  // unit that may be read, -1: none
	overlap   bool // units are brought beside what the rank computes
}

// use makes a unit readable and starts to bring the next one. It panics with *comm.Error if another rank is lost, and
// returns the error of reading from host memory.
func (g *prefetcher) use(unit int) error {
	if g == nil {
		return nil
	}
	todo := g.plan.Use(unit)
	if g.opened == unit && len(todo) == 0 {
		return nil
	}
	g.shut()
	for _, b := range todo {
		if err := g.start(b); err != nil {
			return err
		}
		if !g.overlap {
			if err := g.wait(); err != nil {
				return err
			}
		}
	}
	if err := g.settle(unit); err != nil {
		return err
	}
	g.open(unit, true)
	g.opened = unit
	return nil
}

// start begins a step beside what the rank computes.
func (g *prefetcher) start(b plan.Bring) error {
	u := &g.shards.Units[b.Unit]
	whole := bytesOf(g.slots, u.Slot, u.Bytes())
	switch {
	case b.Read && u.Staging >= 0:
		if g.gathering && g.shards.Units[g.gathered].Staging == u.Staging { // it reads what is there
			g.join()
		}
		return g.host.start(b.Unit, bytesOf(g.stagings, u.Staging, u.Counts[g.shards.Part]), u.Read)
	case b.Read:
		return g.host.start(b.Unit, whole, u.Read)
	}
	mine := u.Mine
	if u.Staging >= 0 {
		mine = bytesOf(g.stagings, u.Staging, u.Counts[g.shards.Part])
		if err := g.host.settle(b.Unit); err != nil {
			return err
		}
	}
	g.join()
	g.comm.Begin(comm.NewAllGather(whole, mine, u.Counts))
	g.gathering, g.gathered = true, b.Unit
	return nil
}

// bytesOf returns the first bytes of one of two places.
func bytesOf(places [2]engine.Buf, at, n int) engine.Tensor {
	return engine.NewTensor(places[at].Piece(0, n), engine.U8, n)
}

// settle makes later calls wait until a unit is there.
func (g *prefetcher) settle(unit int) error {
	if g.gathering && g.gathered == unit {
		g.join()
	}
	if u := &g.shards.Units[unit]; u.Slot >= 0 && u.Staging < 0 {
		return g.host.settle(unit)
	}
	return nil
}

// join makes later calls wait until no gather is running.
func (g *prefetcher) join() {
	if g.gathering {
		g.gathering = false
		g.comm.Fetched()
	}
}

// wait makes later calls wait until nothing is being brought.
func (g *prefetcher) wait() error {
	g.join()
	return g.host.wait()
}

// shut makes the open unit unreadable.
func (g *prefetcher) shut() {
	if g.opened >= 0 {
		g.open(g.opened, false)
		g.opened = -1
	}
}

// close waits until nothing is being brought, even after an error, so that the memory may be freed.
func (g *prefetcher) close() {
	if g == nil {
		return
	}
	g.shut()
	// what failed has failed the request already
	_ = scope.Recovered("gather beside", func() error { return g.wait() })
	_ = g.host.wait()
}

// traffic returns what was read from host memory.
func (g *prefetcher) traffic() comm.Traffic {
	if g == nil {
		return comm.Traffic{}
	}
	return g.host.traffic
}

// hostReader reads units from host memory beside what the rank computes, one at a time.
type hostReader struct {
	ops     engine.Ops
	read    func(unit int, dst []byte, at int) error // nil: no unit is in host memory
	alone   bool                                     // goroutines run one at a time: nothing runs beside the rank
	pos     *Position
	running *scope.Scope // nil: nothing is being read
	unit    int          // that is being read
	traffic comm.Traffic
}

// start begins to read a unit, once the calls issued so far no longer need what is in dst. bytes is what counts of it.
func (h *hostReader) start(unit int, dst engine.Tensor, bytes int) error {
	if err := h.wait(); err != nil {
		return err
	}
	h.traffic.Calls++
	h.traffic.Bytes += int64(bytes)
	fetch := func() error { return h.read(unit, dst.Buf.Host, 0) }
	if device, ok := h.ops.(engine.Fetcher); ok {
		fetch = device.Fetch(dst, func(piece []byte, at int) error { return h.read(unit, piece, at) })
	} else if dst.Buf.IsZero() { // recording
		fetch = func() error { return nil }
	}
	if h.unit = unit; h.alone {
		return fetch()
	}
	h.running = scope.New(nil)
	h.running.Go("fetch of weights", fetch)
	return nil
}

// settle makes later calls wait until a unit is there, if it is the one that is being read.
func (h *hostReader) settle(unit int) error {
	if h.unit != unit {
		return nil
	}
	return h.wait()
}

// wait makes later calls wait until nothing is being read, and returns the error of what was.
func (h *hostReader) wait() error {
	if h.running == nil {
		return nil
	}
	defer func(start time.Time) { h.traffic.Wait += time.Since(start) }(time.Now())
	defer h.pos.within("weights of block %d", h.unit)()
	err := h.running.Wait()
	if h.running = nil; err != nil {
		return err
	}
	if device, ok := h.ops.(engine.Fetcher); ok {
		device.Fetched()
	}
	return nil
}

// placeAlign is the alignment of slots and staging places, a cache line.
const placeAlign = 64

// bring makes the prefetcher of a session whose model has weights that are brought, and the view of the model that
// reads them.
func (r *Rank) bring(s *session) error {
	shards := s.model.Shards()
	if shards == nil {
		return nil
	}
	n, streams := len(s.model.Spec().Blocks), false
	slots, stagings := make([]int, n+1), make([]int, n+1)
	for i := range shards.Units {
		u := &shards.Units[i]
		slots[i], stagings[i], streams = u.Slot, u.Staging, streams || u.Stream
	}
	blocks := newLane(s.open.Lanes, s.open.Plan.Pipe, s.comms[plan.AxisPipe].Rank(), n).held
	s.weights = &prefetcher{
		shards: shards, comm: s.comms[plan.AxisShard], opened: -1, overlap: s.open.Plan.Overlap,
		plan: plan.NewGathers(slots, stagings, len(shards.Units[n].Counts) > 1, blocks),
		host: hostReader{ops: r.Ops, pos: r.Pos, alone: r.scheduler != nil},
	}
	if streams {
		var err error
		if s.weights.host.read, err = shards.Reader(r.opsBeside); err != nil {
			return err
		}
	}
	total, from := 0, [4]int{}
	sizes := slices.Concat(arrayOf(shards.SlotBytes()), arrayOf(shards.StagingBytes()))
	for i, bytes := range sizes {
		from[i] = total
		total += (bytes + placeAlign - 1) / placeAlign * placeAlign
	}
	if err := r.brought.Grow(r.Ops, total); err != nil {
		return err
	}
	place := func(i int) engine.Buf { return r.brought.Mem.Piece(from[i], sizes[i]) }
	s.weights.slots, s.weights.stagings = [2]engine.Buf{place(0), place(1)}, [2]engine.Buf{place(2), place(3)}
	s.model, s.weights.open = shards.View(s.weights.slots)
	return nil
}

func arrayOf(a [2]int) []int { return a[:] }
