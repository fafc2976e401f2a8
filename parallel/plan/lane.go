package plan

import "patchbay/models/dit"

// Lane is the blocks that a micro-step meets at one stop (a model chunk or virtual stage in Megatron-LM; not that,
// because a folded pipeline has two lanes a stage and lanes can share a block). A block that can be cut between
// attention and MLP may belong to two neighbours: the lane before attends, the one behind runs the MLP. Both count it
// in their range.
type Lane struct {
	dit.Range
	Late  bool // begins with the MLP of its first block
	Early bool // ends with the attention of its last block
}

// Half is the part of block b that the lane computes.
func (l Lane) Half(b int) dit.Half {
	switch {
	case l.Late && b == l.Start:
		return dit.MLPHalf
	case l.Early && b == l.End-1:
		return dit.AttentionHalf
	}
	return dit.WholeBlock
}

// Attends tells whether the attention of block b runs in the lane.
func (l Lane) Attends(b int) bool { return l.Half(b) != dit.MLPHalf }

// Keeps tells whether the keys and values of block b stay with the lane.
func (l Lane) Keeps(b int) bool { return b >= l.Start && b < l.End && l.Attends(b) }

// Ends tells whether the output of block b comes out of the lane's work on it.
func (l Lane) Ends(b int) bool { return b >= l.Start && b < l.End && l.Half(b) != dit.AttentionHalf }

// OneLane is the lane of all of n blocks.
func OneLane(n int) []Lane { return []Lane{{Range: dit.Range{End: n}}} }

// Stops returns how many stops a micro-step makes on its way through the pipeline.
func (p Plan) Stops(folded bool) int {
	if folded {
		return 2*p.Pipe - 1
	}
	return p.Pipe
}
