package plan

import "patchbay/models/dit"

// Lane is the range of blocks that a micro-step runs at one stop on its way through the pipeline. (It resembles a model
// chunk or virtual stage in Megatron-LM, but a folded pipeline has two lanes per stage and lanes can share a block.) A
// block that can be cut between attention and MLP may belong to two neighboring lanes, and both count it in their
// range: the earlier one runs its attention, the later one its MLP.
type Lane struct {
	dit.Range
	StartsAtMLP     bool // begins with the MLP of its first block
	EndsAtAttention bool // ends with the attention of its last block
}

// Half returns the part of block b that the lane computes.
func (l Lane) Half(b int) dit.Half {
	switch {
	case l.StartsAtMLP && b == l.Start:
		return dit.MLPHalf
	case l.EndsAtAttention && b == l.End-1:
		return dit.AttentionHalf
	}
	return dit.WholeBlock
}

// Attends reports whether the lane runs the attention of block b, which must be in its range.
func (l Lane) Attends(b int) bool { return l.Half(b) != dit.MLPHalf }

// Keeps reports whether the lane stores the keys and values of block b.
func (l Lane) Keeps(b int) bool { return b >= l.Start && b < l.End && l.Attends(b) }

// Ends reports whether the lane produces the output of block b.
func (l Lane) Ends(b int) bool { return b >= l.Start && b < l.End && l.Half(b) != dit.AttentionHalf }

// OneLane returns the single lane of all n blocks.
func OneLane(n int) []Lane { return []Lane{{Range: dit.Range{End: n}}} }

// Stops returns how many lanes a micro-step passes through in the pipeline.
func (p Plan) Stops(folded bool) int {
	if folded {
		return 2*p.Pipe - 1
	}
	return p.Pipe
}
