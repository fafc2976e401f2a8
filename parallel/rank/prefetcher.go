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

// newPrefetcher makes the prefetcher of a model, or of another network that has shards, for work that uses a range of
// blocks. grow returns memory for the slots and staging places. The caller sets open and what gathers need.
func newPrefetcher(ops engine.Ops, pos *Position, shards *dit.Shards, blocks dit.Range,
	grow func(bytes int) (engine.Buf, error),
) (*prefetcher, error) {
	n := len(shards.Units)
	slots, stagings := make([]int, n), make([]int, n)
	for i := range shards.Units {
		slots[i], stagings[i] = shards.Units[i].Slot, shards.Units[i].Staging
	}
	g := &prefetcher{
		shards: shards, opened: -1, overlap: true, host: hostReader{ops: ops, pos: pos},
		plan: plan.NewGathers(slots, stagings, len(shards.Units[n-1].Counts) > 1, blocks),
	}
	total, from := 0, [4]int{}
	sizes := slices.Concat(arrayOf(shards.SlotBytes()), arrayOf(shards.StagingBytes()))
	for i, bytes := range sizes {
		from[i] = total
		total += (bytes + placeAlign - 1) / placeAlign * placeAlign
	}
	mem, err := grow(total)
	if err != nil {
		return nil, err
	}
	place := func(i int) engine.Buf { return mem.Piece(from[i], sizes[i]) }
	g.slots, g.stagings = [2]engine.Buf{place(0), place(1)}, [2]engine.Buf{place(2), place(3)}
	return g, nil
}

// bring makes the prefetcher of a session whose model has weights that are brought, and the view of the model that
// reads them.
func (r *Rank) bring(s *session) error {
	shards := s.model.Shards()
	if shards == nil {
		return nil
	}
	blocks := newLane(s.open.Lanes, s.open.Plan.Pipe, s.comms[plan.AxisPipe].Rank(), len(s.model.Spec().Blocks)).held
	g, err := newPrefetcher(r.Ops, r.Pos, shards, blocks, func(bytes int) (engine.Buf, error) {
		err := r.brought.Grow(r.Ops, bytes)
		return r.brought.Mem, err
	})
	if err != nil {
		return err
	}
	g.comm, g.overlap, g.host.alone = s.comms[plan.AxisShard], s.open.Plan.Overlap, r.scheduler != nil
	if slices.ContainsFunc(shards.Units, func(u dit.Unit) bool { return u.Stream }) {
		if g.host.read, err = shards.Reader(r.opsBeside); err != nil {
			return err
		}
	}
	s.weights = g
	s.model, g.open = shards.View(g.slots)
	return nil
}

// Bring makes room for the layers of a network that runs beside ranks, of which some come from host memory, and returns
// what brings one before its use. end frees the room; nothing may use the layers afterwards. more makes other Ops of
// the device.
func Bring(ops engine.Ops, more func() (engine.Ops, error), shards *dit.Shards,
) (use func(layer int) error, end func(), err error) {
	var mem engine.Buf
	g, err := newPrefetcher(ops, newPosition(ops), shards, dit.Range{End: len(shards.Units) - 1},
		func(bytes int) (_ engine.Buf, err error) {
			mem, err = ops.Alloc(bytes)
			return mem, err
		})
	if err != nil {
		return nil, nil, err
	}
	var beside []engine.Ops
	g.host.read, err = shards.Reader(func() (engine.Ops, error) {
		o, err := more()
		if err == nil {
			beside = append(beside, o)
		}
		return o, err
	})
	end = func() {
		g.close()
		_ = ops.Sync() // of a device, whose errors the next call returns
		ops.Free(mem)
		CloseOps(beside...)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	_, g.open = shards.View(g.slots)
	return g.use, end, nil
}

func arrayOf(a [2]int) []int { return a[:] }
