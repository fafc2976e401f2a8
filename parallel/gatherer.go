package parallel

import (
	"patchbay/models/dit"
	"patchbay/parallel/comm"
)

// Weights in parts (shard=on; ZeRO stage 3, arXiv:1910.02054, sec. 5.3): ranks that would hold the same weights hold a part of each unit's bytes. A unit is
// gathered just before it is used, the next one while it is used, and its place is given to the one after that. All ranks of the group use units
// in one order, which depends on nothing but the number of blocks, so gathers meet without any agreement.

// gatherPlan says which units are gathered when: two places, a unit always in the same one.
type gatherPlan struct {
	place func(unit int) int
	in    [2]int // unit whose bytes are in a place or under way to it, -1: none
}

func newGatherPlan(place func(unit int) int) *gatherPlan {
	return &gatherPlan{place: place, in: [2]int{-1, -1}}
}

// use lists the units to be gathered, in order, when unit is used and next will be: unit itself if it is not there yet, then next if its place is free.
func (g *gatherPlan) use(unit, next int) []int {
	var out []int
	for _, u := range []int{unit, next} {
		if p := g.place(u); g.in[p] != u && (u == unit || p != g.place(unit)) {
			g.in[p] = u
			out = append(out, u)
		}
	}
	return out
}

// unitOrder calls use with every unit and the one after it, as a session does with n blocks: once to prepare, then for each evaluation what is outside of
// blocks (for the embedding), the blocks, and what is outside of them (for the head).
func unitOrder(n, evaluations int, use func(unit, next int)) {
	blocks := func() {
		for b := range n {
			use(b, b+1)
		}
	}
	use(n, 0)
	blocks()
	for range evaluations {
		use(n, 0)
		blocks()
		use(n, 0)
	}
}

// gatherer brings the units of one rank's model together.
type gatherer struct {
	shards *dit.Shards
	comm   comm.Comm
	plan   *gatherPlan
	open   int  // unit that may be read, -1: none
	flight bool // a gather is under way
}

// newGatherer makes the gatherer of a session; nil where the model holds all its weights.
func newGatherer(shards *dit.Shards, c comm.Comm) *gatherer {
	if shards == nil {
		return nil
	}
	return &gatherer{shards: shards, comm: c, plan: newGatherPlan(func(u int) int { return shards.Units[u].Place }), open: -1}
}

// use makes a unit readable and starts to gather the next one. It panics with *comm.Error when another rank is lost.
func (g *gatherer) use(unit, next int) {
	if g == nil {
		return
	}
	todo := g.plan.use(unit, next)
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
	}
}

// start gathers a unit beside what the rank computes.
func (g *gatherer) start(u int) {
	unit := &g.shards.Units[u]
	g.comm.Prefetch(unit.Whole, unit.Mine, unit.Counts)
	g.flight = true
}

// wait ends the gather under way.
func (g *gatherer) wait() {
	if g.flight {
		g.flight = false
		g.comm.Fetched()
	}
}

// shut forbids reading.
func (g *gatherer) shut() {
	if g.open >= 0 {
		g.shards.Units[g.open].Open(false)
		g.open = -1
	}
}

// close waits until nothing is under way any more, whatever became of it, so that the memory may be freed.
func (g *gatherer) close() {
	if g == nil {
		return
	}
	g.shut()
	_ = Recovered("gather of weights", func() error { g.wait(); return nil }) // a failed gather has failed the request already
}
