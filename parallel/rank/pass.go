package rank

import (
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// pass is how evaluations of one kind go through a rank.
type pass struct {
	blocks      dit.Range // that the rank runs
	first, last bool      // it embeds; it predicts
	ring        comm.Comm // ranks that share K and V
	places      []int     // relative shares of the places in the sequence
}

// newPasses returns the passes of evaluations of one patch, and of synchronous ones. Spread, these run all blocks of
// the model on all stages at once; an up lane leaves them to the down lane of its stage.
func newPasses(p plan.Plan, l lane, comms [plan.AxisCount]comm.Comm, blocks int) (patch, whole pass) {
	pipe := comms[plan.AxisPipe]
	patch = pass{
		blocks: l.held, first: pipe.Rank() == 0, last: pipe.Rank() == pipe.Size()-1,
		ring: comms[plan.AxisRing], places: p.Places(false),
	}
	if !p.Spread || l.up {
		return patch, patch
	}
	return patch, pass{
		blocks: dit.Range{End: blocks}, first: true, last: true,
		ring: comms[plan.AxisSpread], places: p.Places(true),
	}
}
