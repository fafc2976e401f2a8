package rank

import (
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

// prefetcher gathers the weights of one rank's model unit by unit (dit.Shards).
type prefetcher struct {
	shards  *dit.Shards
	comm    comm.Comm
	running bool // a gather, beside what the rank computes; there is at most one
	plan    *plan.Gathers
	open    int  // unit that may be read, -1: none
	overlap bool // gathers run beside what the rank computes
}

// newPrefetcher makes the prefetcher of a session; nil if the model holds all its weights.
func newPrefetcher(shards *dit.Shards, c comm.Comm, overlap bool) *prefetcher {
	if shards == nil {
		return nil
	}
	return &prefetcher{
		shards: shards, comm: c, plan: plan.NewGathers(func(u int) int { return shards.Units[u].Buffer }),
		open: -1, overlap: overlap,
	}
}

// use makes a unit readable and starts to gather the next one. It panics with *comm.Error if another rank is lost.
func (g *prefetcher) use(unit, next int) {
	if g == nil {
		return
	}
	todo := g.plan.Use(unit, next)
	if g.open == unit && len(todo) == 0 {
		return
	}
	g.shut()
	g.wait()
	if len(todo) > 0 && todo[0] == unit {
		g.start(unit)
		g.wait()
		todo = todo[1:]
	}
	g.shards.Units[unit].Open(true)
	g.open = unit
	for _, u := range todo {
		g.start(u)
		if !g.overlap {
			g.wait()
		}
	}
}

// start gathers a unit beside what the rank computes.
func (g *prefetcher) start(u int) {
	unit := &g.shards.Units[u]
	g.wait()
	g.comm.Begin(comm.NewAllGather(unit.Whole, unit.Mine, unit.Counts))
	g.running = true
}

// wait makes later calls wait until no gather is running.
func (g *prefetcher) wait() {
	if g.running {
		g.running = false
		g.comm.Fetched()
	}
}

// shut makes the open unit unreadable.
func (g *prefetcher) shut() {
	if g.open >= 0 {
		g.shards.Units[g.open].Open(false)
		g.open = -1
	}
}

// close waits until no gather is running, even after an error, so that the memory may be freed.
func (g *prefetcher) close() {
	if g == nil {
		return
	}
	g.shut()
	// a failed gather has failed the request already
	_ = scope.Recovered("gather beside", func() error { g.wait(); return nil })
}
