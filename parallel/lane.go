package parallel

import "patchbay/models/dit"

// lane is the blocks that a micro-step meets at one stop. A block that can be cut between attention and MLP may belong to two neighbours: the lane before
// attends, the one behind runs the MLP. Both count it in their range.
type lane struct {
	dit.Range
	Late  bool // begins with the MLP of its first block
	Early bool // ends with the attention of its last block
}

// half is the part of block b that the lane computes.
func (l lane) half(b int) dit.Half {
	switch {
	case l.Late && b == l.Start:
		return dit.MLPHalf
	case l.Early && b == l.End-1:
		return dit.AttentionHalf
	}
	return dit.WholeBlock
}

// attends tells whether the attention of block b runs in the lane.
func (l lane) attends(b int) bool { return l.half(b) != dit.MLPHalf }

// keeps tells whether the keys and values of block b stay with the lane.
func (l lane) keeps(b int) bool { return b >= l.Start && b < l.End && l.attends(b) }

// ends tells whether the output of block b comes out of the lane's work on it.
func (l lane) ends(b int) bool { return b >= l.Start && b < l.End && l.half(b) != dit.AttentionHalf }

// whole makes lanes of whole blocks.
func whole(ranges []dit.Range) []lane {
	out := make([]lane, len(ranges))
	for i, r := range ranges {
		out[i] = lane{Range: r}
	}
	return out
}

// lanes returns how many stops a micro-step makes on its way through the pipeline.
func (p Plan) lanes(folded bool) int {
	if folded {
		return 2*p.Pipe - 1
	}
	return p.Pipe
}
