package parallel

import (
	"fmt"
	"time"

	"patchbay/engine"
	"patchbay/engine/profile"
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
	ops    engine.Ops // for the profile
	inline bool       // gather while the rank waits: ranks run one at a time
	plan   *gatherPlan
	open   int    // unit that may be read, -1: none
	flight *Group // the gather under way; nil: none
	bytes  int64  // that it sends
}

// newGatherer makes the gatherer of a session; nil where the model holds all its weights.
func newGatherer(shards *dit.Shards, comm comm.Comm, ops engine.Ops, inline bool) *gatherer {
	if shards == nil {
		return nil
	}
	return &gatherer{shards: shards, comm: comm, ops: ops, inline: inline, plan: newGatherPlan(func(u int) int { return shards.Units[u].Place }), open: -1}
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
	g.bytes = int64(unit.Mine.Len() * (g.comm.Size() - 1))
	if g.inline {
		g.comm.AllGather(unit.Whole, unit.Mine, unit.Counts)
		return
	}
	g.flight = NewGroup(nil)
	g.flight.Go(fmt.Sprintf("gather of unit %d", u), func() error {
		g.comm.AllGather(unit.Whole, unit.Mine, unit.Counts)
		return nil
	})
}

// wait ends the gather under way.
func (g *gatherer) wait() {
	if g.flight == nil {
		return
	}
	start, group := time.Now(), g.flight
	g.flight = nil
	if err := group.Wait(); err != nil {
		panic(err) // a *comm.Error, or an *Error with a stack of its own
	}
	if p, ok := g.ops.(*profile.Ops); ok {
		p.Remember("exchange", "gather of weights", start, g.bytes)
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
	if g.flight != nil {
		_ = g.flight.Wait() // a failed gather has failed the request already
		g.flight = nil
	}
}
