package parallel

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/models/dit"
)

// Stages that hold their own weights alone (shard=on with pipe): each reads what its blocks, or the halves that it computes, need, the first one also what
// embeds, the one with the last lane the head; nothing is brought together later. Their cuts depend on model and device alone, so that another size of
// picture finds its weights in place: they are made for one of referenceSide tokens a side with referenceText tokens of text.

// referenceSide is the tokens a side of a picture of 1024 pixels in the models here, referenceText the longest text that FLUX was published with.
const referenceSide, referenceText = 64, 512

// owns tells whether a stage holds its own weights alone.
func (p Plan) owns() bool { return p.Shard && p.Pipe > 1 }

// ownLanes cuts the blocks of a model over stages that own their weights, by the rates of a device or by parameters.
func (p Plan) ownLanes(spec *dit.Spec, device Device) []lane {
	if p.ByWeights {
		return p.lightestLanes(spec)
	}
	one := OneRank()
	one.Pipe, one.Patches = p.Pipe, p.Pipe
	side := referenceSide * spec.PatchSize
	return newOutline(Workload{Spec: spec, Y: side, X: side, Batch: 1, Text: []int{referenceText}, Evaluations: 1, Device: device}, one).lanes
}

// lightestLanes cuts by parameters, with blocks in halves or without, whichever leaves the heaviest stage less: what both halves of a block read (its
// modulation) is on both sides of a cut.
func (p Plan) lightestLanes(spec *dit.Spec) []lane {
	var costs []blockCost
	undivided := *spec
	undivided.Blocks = slices.Clone(spec.Blocks)
	for i, b := range spec.Blocks {
		costs = append(costs, blockCost{attention: float64(b.Params - b.MLPParams), mlp: float64(b.MLPParams)})
		undivided.Blocks[i].Cuts = false
	}
	ends := [2]float64{float64(spec.EmbedParams), float64(spec.HeadParams)}
	halves, blocks := lanesBy(spec, costs, ends, p.Pipe), lanesBy(&undivided, costs, ends, p.Pipe)
	if p.heaviest(spec, halves) < p.heaviest(spec, blocks) {
		return halves
	}
	return blocks
}

// heaviest is the most parameters that a stage holds.
func (p Plan) heaviest(spec *dit.Spec, lanes []lane) (most int64) {
	for stage := range p.Pipe {
		most = max(most, heldParams(spec, p.stageHeld(lanes, stage)))
	}
	return most
}

// stageHeld is the part of the weights of one stage of a plan whose stages own theirs.
func (p Plan) stageHeld(lanes []lane, stage int) dit.Held {
	last := len(lanes) - 1
	h := dit.Held{NoEmbed: stage > 0, NoHead: stage < last}
	mine := []int{stage}
	if len(lanes) > p.Pipe { // folded: the way back ends on the first stage
		h.NoHead = stage > 0
		if back := last - stage; back != stage {
			mine = append(mine, back)
		}
	}
	for _, k := range mine {
		l := lanes[k]
		h.Blocks = append(h.Blocks, l.Range)
		for _, b := range []int{l.Start, l.End - 1} {
			switch l.half(b) {
			case dit.MLPHalf:
				h.MLPOnly = append(h.MLPOnly, b)
			case dit.AttentionHalf:
				h.AttentionOnly = append(h.AttentionOnly, b)
			}
		}
	}
	return h
}

// heldParams is the parameters of a part of a model. Slices of a tensor group are not looked at.
func heldParams(spec *dit.Spec, h dit.Held) int64 {
	n := spec.Params
	for i := range spec.Blocks {
		n -= spec.Blocks[i].Params
		if h.Has(i) {
			n += spec.Blocks[i].HalfParams(h.Half(i))
		}
	}
	if h.NoEmbed {
		n -= spec.EmbedParams
	}
	if h.NoHead {
		n -= spec.HeadParams
	}
	return n
}

// stageName names the blocks of a stage in the key of its weights: "#blocks3m-8,12-15a", first and last ones, m for the MLP and a for the attention alone.
func stageName(h dit.Held) string {
	if h.Blocks == nil {
		return ""
	}
	part := func(b int) string {
		return fmt.Sprint(b) + map[dit.Half]string{dit.MLPHalf: "m", dit.AttentionHalf: "a"}[h.Half(b)]
	}
	var parts []string
	for _, r := range h.Blocks {
		parts = append(parts, part(r.Start)+"-"+part(r.End-1))
	}
	return "#blocks" + strings.Join(parts, ",")
}
