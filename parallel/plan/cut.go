package plan

import "patchbay/models/dit"

// BlockCost is the time in seconds that a stage spends on one block in one evaluation: up to and including the residual
// of its attention, and on the MLP after it. A block that cannot be cut has its whole cost in Attention.
type BlockCost struct{ Attention, MLP float64 }

// Whole returns the cost of both halves.
func (c BlockCost) Whole() float64 { return c.Attention + c.MLP }

// Cut distributes blocks with the given costs over the lanes of stages with the given speeds so that the slowest stage
// takes as little time as possible. ends are the costs of embedding and head. With two or more blocks per stage, blocks
// that can be cut in halves are: 57 blocks of equal cost on 8 stages leave 8 on some, 1.12 of the mean; with half
// blocks at the first two cuts it is 7.5, 1.05 of the mean.
func Cut(spec *dit.Spec, costs []BlockCost, ends [2]float64, speeds []float64) []Lane {
	if Skips(spec) {
		return foldedLanes(spec, costs, ends, speeds)
	}
	var p pieces
	halves := len(costs) >= 2*len(speeds)
	for b, c := range costs {
		if halves && spec.Blocks[b].Splittable {
			p.add(b, dit.AttentionHalf, c.Attention)
			p.add(b, dit.MLPHalf, c.MLP)
		} else {
			p.add(b, dit.WholeBlock, c.Whole())
		}
	}
	return p.lanes(stages(p.cost, speeds, ends))
}

// Models whose later blocks take the output of earlier ones run on folded stages: a stage owns blocks [a, b) and their
// mirror images [N-b, N-a). Micro-steps travel down through the first halves and back up through the mirror images, so
// an output that is kept for a later block never leaves its device. Down and up are separate lanes, each with its
// commands in order; the last stage has one lane in the middle. Any number of stages works.

// foldedLanes distributes the first half of the blocks and its mirror image over stages, with embedding and head on the
// first one. A cut in the middle of block b is also one in the middle of its mirror image N-1-b. The output of b is
// produced after the first of these cuts and consumed before the second, so it stays on its stage.
func foldedLanes(spec *dit.Spec, costs []BlockCost, ends [2]float64, speeds []float64) []Lane {
	n, parts := len(costs), len(speeds)
	pairs := pieces{}
	halves := n/2 >= 2*parts
	for b := range n / 2 {
		down, up := costs[b], costs[n-1-b]
		switch middle := n%2 == 1 && b == n/2-1; {
		case middle: // the block in the middle stays with its neighbors
			pairs.add(b, dit.WholeBlock, down.Whole()+costs[n/2].Whole()+up.Whole())
		case halves && spec.Blocks[b].Splittable && spec.Blocks[n-1-b].Splittable:
			pairs.add(b, dit.AttentionHalf, down.Attention+up.MLP)
			pairs.add(b, dit.MLPHalf, down.MLP+up.Attention)
		default:
			pairs.add(b, dit.WholeBlock, down.Whole()+up.Whole())
		}
	}
	out := make([]Lane, 2*parts-1)
	for s, l := range pairs.lanes(stages(pairs.cost, speeds, [2]float64{ends[0] + ends[1]})) {
		if s == parts-1 {
			l.End = n - l.Start
			l.EndsAtAttention = l.StartsAtMLP
			out[s] = l
			continue
		}
		out[s] = l
		out[2*parts-2-s] = Lane{
			Range:       dit.Range{Start: n - l.End, End: n - l.Start},
			StartsAtMLP: l.EndsAtAttention, EndsAtAttention: l.StartsAtMLP,
		}
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
func (p *pieces) lanes(ranges []dit.Range) []Lane {
	out := make([]Lane, len(ranges))
	for i, r := range ranges {
		if r.Len() == 0 {
			if i > 0 {
				out[i].Start, out[i].End = out[i-1].End, out[i-1].End
			}
			continue
		}
		out[i] = Lane{
			Range:       dit.Range{Start: p.block[r.Start], End: p.block[r.End-1] + 1},
			StartsAtMLP: p.half[r.Start] == dit.MLPHalf, EndsAtAttention: p.half[r.End-1] == dit.AttentionHalf,
		}
	}
	return out
}
