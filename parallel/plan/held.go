package plan

import (
	"fmt"
	"regexp"
	"strings"

	"patchbay/models/dit"
)

// Stages that own their weights (shard or stream with pipe): each reads only what its blocks need; the first one also
// the embedding, the one with the last lane also the head. Nothing is gathered later.

// Owns reports whether every stage holds only its own weights.
func (p Plan) Owns() bool { return (p.Shard || p.Streams()) && p.Pipe > 1 }

// Streams reports whether blocks are brought from host memory.
func (p Plan) Streams() bool { return p.Stream > 0 || p.Stream == StreamOn }

// StageHeld returns the part of the weights that a stage holds. The plan must be one whose stages own their weights.
func (p Plan) StageHeld(lanes []dit.Range, stage int) dit.Held {
	last := len(lanes) - 1
	h := dit.Held{NoEmbed: stage > 0, NoHead: stage < last}
	h.Blocks = []dit.Range{lanes[stage]}
	if len(lanes) > p.Pipe { // folded: the way up ends on the first stage
		h.NoHead = stage > 0
		if back := last - stage; back != stage {
			h.Blocks = append(h.Blocks, lanes[back])
		}
	}
	return h
}

// HeldParams returns the number of parameters of a part of a model.
func HeldParams(spec *dit.Spec, h dit.Held) int64 {
	n := spec.Params
	for i, b := range spec.Blocks {
		n -= b.Params
		if h.Has(i) {
			n += b.HeldParams(h)
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

// stageName names the blocks of a stage in the key of its weights: "#blocks3-8,12-15" has the first and last block of
// each range.
func stageName(h dit.Held) string {
	if h.Blocks == nil {
		return ""
	}
	var parts []string
	for _, r := range h.Blocks {
		parts = append(parts, fmt.Sprintf("%d-%d", r.Start, r.End-1))
	}
	return "#blocks" + strings.Join(parts, ",")
}

// Parts returns over how many ranks the bytes of a block are split; 1: blocks are whole.
func (p Plan) Parts() int {
	if !p.Shard || p.Owns() {
		return 1
	}
	return p.Data * p.CFG * p.Ring * p.Ulysses
}

// Held returns the part of the weights that a rank holds. lanes are only read where stages own their weights.
func (p Plan) Held(lanes []dit.Range, c Coord) dit.Held {
	var h dit.Held
	if p.Owns() {
		h = p.StageHeld(lanes, c.Pipe)
	}
	if p.Tensor > 1 {
		h.Rank, h.Ranks = c.Tensor, p.Tensor
	}
	if p.Parts() > 1 {
		h.Part, h.Parts = ((c.Data*p.CFG+c.CFG)*p.Ring+c.Ring)*p.Ulysses+c.Ulysses, p.Parts()
	}
	if h.Stream = p.Stream; p.Stream == StreamOn { // not chosen yet: all
		h.Stream = maxStream
	}
	h.Stream = max(h.Stream, 0)
	return h
}

// BesideHeld returns the part of the weights of a control net that a rank holds: its tensor slice, but in a pipeline
// everything, because every rank of it computes the whole net.
func (p Plan) BesideHeld(tensor int) (h dit.Held) {
	if p.Pipe == 1 && p.Tensor > 1 {
		h.Rank, h.Ranks = tensor, p.Tensor
	}
	return h
}

// ForNets returns the plan by which ranks compute control nets: the model's, but without splitting the rows between
// projections. In a pipeline every rank computes them alone.
func (p Plan) ForNets() Plan {
	if p.Pipe > 1 {
		p.Ulysses, p.Ring, p.Gather, p.Tensor, p.Speeds = 1, 1, false, 1, Speeds{}
	}
	p.Pipe, p.Patches, p.Warmup, p.Scatter, p.Spread, p.Overlap = 1, 1, 0, false, false, false
	return p
}

// identity is what keys have after the path of a file: the hash of its header and when it was changed.
var identity = regexp.MustCompile(`#[0-9a-f]+@[0-9a-f]+`)

// ShownKey returns what errors show of the key of a model's weights: the paths of its files, without what tells their
// contents apart.
func ShownKey(key string) string { return identity.ReplaceAllString(key, "") }

// HeldKey returns the key of a part of a model's weights.
func HeldKey(key string, held dit.Held) string {
	if held.Ranks <= 1 && held.Parts <= 1 && held.Blocks == nil && held.Stream == 0 {
		return key
	}
	stream := ""
	if held.Stream > 0 {
		stream = fmt.Sprintf("#stream%d", held.Stream)
	}
	return fmt.Sprintf("%s#tensor%d/%d#part%d/%d%s%s", key, held.Rank, max(held.Ranks, 1), held.Part,
		max(held.Parts, 1), stageName(held), stream)
}
