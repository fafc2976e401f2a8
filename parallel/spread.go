package parallel

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// Synchronous evaluations of a pipeline may be spread: instead of passing the whole picture from stage to stage, which leaves all stages but one idle, all
// of them run all blocks on their part of the sequence. Keys and values go to everybody with one all-gather for each attention, so each rank ends with
// whole stores for the blocks of its own stage, as after a synchronous evaluation; those of other blocks pass through one spare piece of memory. Every rank
// needs the weights of all blocks for it: in-process ranks share them, devices pay for them.

// spreads tells whether c runs on all stages at once.
func (s *rankSession) spreads(c *EvaluateCommand) bool { return c.Whole && s.open.Plan.Spread }

// prepared is the blocks that entries are prepared for.
func (s *rankSession) prepared() dit.Range {
	if s.open.Plan.Spread {
		return dit.Range{End: len(s.model.Spec().Blocks)}
	}
	return s.held.Range
}

// outer is the comm of the ranks that K and V are shared with: the ring, with all stages in a spread evaluation.
func (s *rankSession) outer(c *EvaluateCommand) Comm {
	if s.spreads(c) {
		return s.comms[AxisSpread]
	}
	return s.comms[AxisRing]
}

// widened is the store of a spread evaluation: own blocks in their places, the others in spare memory, one after the other.
func (s *kvStore) widened(env dit.Env, spec *dit.Spec, b, heads int) *kvStore {
	out := &kvStore{lt: s.lt, li: s.li, kv: map[[2]int]engine.Tensor{}}
	var spare []engine.Tensor
	for i, blk := range spec.Blocks {
		for a := range max(blk.Attends, 1) {
			at := [2]int{i, a}
			if own, ok := s.kv[at]; ok {
				out.kv[at] = own
				continue
			}
			if a == len(spare) {
				spare = append(spare, env.Arena.Alloc(env.DType, b, storeRows(s.lt, s.li, a), 2, heads, spec.HeadDim))
			}
			out.kv[at] = spare[a]
		}
	}
	return out
}

// storeRows is the tokens of attention a of a block: the second one is over image tokens only.
func storeRows(lt, li, a int) int {
	if a > 0 {
		return li
	}
	return lt + li
}

// spread is the outline of spread evaluations: the ranks are the same, stages count as places of the ring.
func (o *outline) spread() *outline {
	w := *o
	w.plan.Ring, w.plan.Pipe, w.plan.Patches, w.stores = o.plan.Pipe*o.plan.Ring, 1, 1, true
	w.mesh = Mesh{Plan: w.plan}
	w.lanes = whole([]dit.Range{{End: len(o.Spec.Blocks)}})
	return &w
}

// spreadCoord is the place of a rank in the outline of spread evaluations.
func (o *outline) spreadCoord(c Coord) Coord {
	c.Ring, c.Pipe = c.Pipe*o.plan.Ring+c.Ring, 0
	return c
}

// spreadVolumes is what rank c sends in a spread evaluation.
func (o *outline) spreadVolumes(c Coord) [axisCount]volume {
	v := o.spread().volumes(o.spreadCoord(c), Micro{Whole: true})
	v[AxisSpread], v[AxisRing] = v[AxisRing], volume{}
	return v
}

// prepared is the blocks that entries are prepared for on a lane that holds some.
func (o *outline) prepared(held dit.Range) dit.Range {
	if o.plan.Spread {
		return dit.Range{End: len(o.Spec.Blocks)}
	}
	return held
}
