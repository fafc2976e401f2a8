package rank

import (
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// prefetcher gathers the weights of one rank's model unit by unit (dit.Shards).
type prefetcher struct {
	shards *dit.Shards
	flight flight // the gather under way
	plan   *plan.Gathers
	open   int  // unit that may be read, -1: none
	ahead  bool // gathers run beside what the rank computes
}

// newPrefetcher makes the prefetcher of a session; nil if the model holds all its weights.
func newPrefetcher(shards *dit.Shards, c comm.Comm, ahead bool) *prefetcher {
	if shards == nil {
		return nil
	}
	return &prefetcher{
		shards: shards, flight: flight{comm: c},
		plan: plan.NewGathers(func(u int) int { return shards.Units[u].Buffer }), open: -1, ahead: ahead,
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
	g.flight.wait()
	if len(todo) > 0 && todo[0] == unit {
		g.start(unit)
		g.flight.wait()
		todo = todo[1:]
	}
	g.shards.Units[unit].Open(true)
	g.open = unit
	for _, u := range todo {
		g.start(u)
		if !g.ahead {
			g.flight.wait()
		}
	}
}

// start gathers a unit beside what the rank computes.
func (g *prefetcher) start(u int) {
	unit := &g.shards.Units[u]
	g.flight.begin(comm.NewAllGather(unit.Whole, unit.Mine, unit.Counts))
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
	g.flight.close()
}
