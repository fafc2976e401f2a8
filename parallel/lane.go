package parallel

import "patchbay/models/dit"

// lane is the blocks that a micro-step meets at one stop. A block that can be cut between attention and MLP may belong to two neighbours: the lane before
// attends, the one behind runs the MLP. Both count it in their range.
type lane struct {
	dit.Range
	late  bool // begins with the MLP of its first block
	early bool // ends with the attention of its last block
}

// half is the part of block b that the lane computes.
func (l lane) half(b int) dit.Half {
	switch {
	case l.late && b == l.Start:
		return dit.MLPHalf
	case l.early && b == l.End-1:
		return dit.AttentionHalf
	}
	return dit.WholeBlock
}

// attends tells whether the attention of block b runs in the lane.
func (l lane) attends(b int) bool { return l.half(b) != dit.MLPHalf }

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
			late:  p.half[r.Start] == dit.MLPHalf, early: p.half[r.End-1] == dit.AttentionHalf,
		}
	}
	return out
}

// stageLanes cuts the blocks of a model over stages for a picture of lt text and li image tokens so that the dearest stage is as cheap as possible, embedding
// and head counted. With two blocks a stage or more, blocks that can be cut in halves are: 57 blocks of equal cost on 8 stages leave 8 on
// some, 1.12 of the mean; with half blocks at the first two cuts it is 7.5, 1.05 of the mean.
func stageLanes(spec *dit.Spec, lt, li, parts int) []lane {
	ends := float64(li) * float64(spec.Width*spec.PatchSize*spec.PatchSize)
	extra := [2]float64{ends * float64(spec.Channels), ends * float64(spec.OutChannels)}
	costs := blockCosts(spec, lt, li)
	if len(costs) < 2*parts {
		return whole(stages(costs, parts, extra))
	}
	var p pieces
	for i, b := range spec.Blocks {
		if !b.Cuts {
			p.add(i, dit.WholeBlock, costs[i])
			continue
		}
		mlp := 2 * spec.MLPRatio * float64(spec.Width*spec.Width) * float64(lt+li)
		p.add(i, dit.AttentionHalf, costs[i]-mlp)
		p.add(i, dit.MLPHalf, mlp)
	}
	return p.lanes(stages(p.cost, parts, extra))
}
