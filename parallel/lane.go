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

// pieces are what stages are cut from: whole blocks, and the halves of those that can be cut.
type pieces struct {
	block []int // of each piece
	half  []dit.Half
	cost  []float64
}

func (p *pieces) add(block int, half dit.Half, cost float64) {
	p.block, p.half, p.cost = append(p.block, block), append(p.half, half), append(p.cost, cost)
}

// lanes turns ranges of pieces into lanes.
func (p *pieces) lanes(ranges []dit.Range) []lane {
	out := make([]lane, len(ranges))
	for i, r := range ranges {
		if r.Len() == 0 {
			at := 0
			if i > 0 {
				at = out[i-1].End
			}
			out[i] = lane{Range: dit.Range{Start: at, End: at}}
			continue
		}
		out[i] = lane{
			Range: dit.Range{Start: p.block[r.Start], End: p.block[r.End-1] + 1},
			Late:  p.half[r.Start] == dit.MLPHalf, Early: p.half[r.End-1] == dit.AttentionHalf,
		}
	}
	return out
}

// stageLanes cuts blocks of the given costs over stages so that the dearest stage is as cheap as possible, embedding and head counted. With two blocks a
// stage or more, blocks that can be cut in halves are: 57 blocks of equal cost on 8 stages leave 8 on some, 1.12 of the mean; with half blocks at the first
// two cuts it is 7.5, 1.05 of the mean.
func stageLanes(spec *dit.Spec, costs []blockCost, ends [2]float64, parts int) []lane {
	p := cutPieces(spec, costs, len(costs) >= 2*parts)
	return p.lanes(stages(p.cost, parts, ends))
}

// cutPieces lists the pieces of blocks in order: halves where a block can be cut and halves are allowed.
func cutPieces(spec *dit.Spec, costs []blockCost, allowed bool) pieces {
	var p pieces
	for i, c := range costs {
		if !allowed || !spec.Blocks[i].Cuts {
			p.add(i, dit.WholeBlock, c.whole())
			continue
		}
		p.add(i, dit.AttentionHalf, c.attention)
		p.add(i, dit.MLPHalf, c.mlp)
	}
	return p
}
