package plan

import "patchbay/models/dit"

// Cut distributes blocks with the given costs in seconds over the lanes of stages with the given speeds so that the
// slowest stage takes as little time as possible. ends are the costs of embedding and head.
func Cut(spec *dit.Spec, costs []float64, ends [2]float64, speeds []float64) []dit.Range {
	if Skips(spec) {
		return foldedLanes(costs, ends, speeds)
	}
	return stages(costs, speeds, ends)
}

// Models whose later blocks take the output of earlier ones run on folded stages: a stage owns blocks [a, b) and their
// mirror images [N-b, N-a). Micro-steps travel down through the first of these and back up through the mirror images,
// so an output that is kept for a later block never leaves its device. Down and up are separate lanes, each with its
// commands in order; the last stage has one lane in the middle. Any number of stages works.

// foldedLanes distributes the first half of the blocks and its mirror image over stages, with embedding and head on the
// first one.
func foldedLanes(costs []float64, ends [2]float64, speeds []float64) []dit.Range {
	n, parts := len(costs), len(speeds)
	pairs := make([]float64, n/2)
	for b := range pairs {
		pairs[b] = costs[b] + costs[n-1-b]
	}
	if n%2 == 1 { // the block in the middle stays with its neighbors
		pairs[len(pairs)-1] += costs[n/2]
	}
	out := make([]dit.Range, 2*parts-1)
	for s, r := range stages(pairs, speeds, [2]float64{ends[0] + ends[1]}) {
		if s == parts-1 {
			r.End = n - r.Start
			out[s] = r
			continue
		}
		out[s], out[2*parts-2-s] = r, dit.Range{Start: n - r.End, End: n - r.Start}
	}
	return out
}

// Stops returns how many lanes a micro-step passes through in the pipeline. A lane is the range of blocks that it runs
// at one stop. (It resembles a model chunk or virtual stage in Megatron-LM.)
func (p Plan) Stops(folded bool) int {
	if folded {
		return 2*p.Pipe - 1
	}
	return p.Pipe
}
