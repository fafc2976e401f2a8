package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// skips is the outputs of blocks that later blocks of the model read. Those of the lanes of a stage are in their
// LaneStore: the rows of this rank or, in a pipeline, whose patches are cut differently, all rows.
type skips struct {
	spread map[int]map[int]engine.Tensor // by entry and block, the rows of this rank in a spread evaluation; nil: none
}

// reserve takes memory for an entry. Spread evaluations need the rows of this rank for the blocks of other lanes, too.
func (s *skips) reserve(n *network, entry int, e *sessionEntry) {
	spec, spreads := n.model.Spec(), n.open.Plan.Spread && !n.lane.up
	_, _, narrow := n.rows(wholeEvaluation(), e)
	tokens := dit.Range{End: e.grid.Tokens()}
	if n.open.Plan.Pipe == 1 {
		tokens = dit.Range{End: narrow.Image.Len()}
	}
	var outputs map[int]engine.Tensor
	if plan.Skips(spec) && spreads {
		if s.spread == nil {
			s.spread = map[int]map[int]engine.Tensor{}
		}
		outputs = map[int]engine.Tensor{}
		s.spread[entry] = outputs
	}
	for _, b := range spec.Blocks {
		if b.Skip >= 0 && n.lane.held.Has(b.Skip) {
			output := n.env.Arena.Alloc(n.env.DType, n.open.Batch, tokens.Len(), spec.Width)
			n.lanes.put(skipKey{entryKey{n.id, entry}, b.Skip}, output)
			if outputs != nil {
				outputs[b.Skip] = output.Slice(1, narrow.Image.Start, narrow.Image.End)
			}
		} else if b.Skip >= 0 && outputs != nil {
			outputs[b.Skip] = n.env.Arena.Alloc(n.env.DType, n.open.Batch, narrow.Image.Len(), spec.Width)
		}
	}
}

// output returns the place of a block's output for the rows of a run; zero: no block of this stage reads it.
func (s *skips) output(n *network, run *entryRun, block int) engine.Tensor {
	if outputs := s.spread[run.entry]; run.whole && outputs != nil {
		return outputs[block]
	}
	t := n.lanes.output(skipKey{entryKey{n.id, run.entry}, block})
	if t.IsZero() || n.open.Plan.Pipe == 1 {
		return t
	}
	r := run.state.Rows.Image
	return t.Slice(1, r.Start, r.End)
}
