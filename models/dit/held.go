package dit

import "slices"

// Held says which part of a model's weights a rank holds. The zero Held is everything. The conditioning (what Prepare,
// PrepareBlock and Modulate read of text and timestep) is always held.
type Held struct {
	// Blocks are the ranges of blocks that are held; nil: all. Folded stages of skip-connected models hold two ranges.
	Blocks []Range
	// AttentionOnly and MLPOnly name blocks of which no more than the AttentionHalf, or the MLPHalf, is held.
	AttentionOnly, MLPOnly []int
	// NoEmbed and NoHead leave out what Embed alone and Head alone need: stages between the first and the last have no use
	// for it.
	NoEmbed, NoHead bool
	// Rank and Ranks give the slice of a tensor group: attention heads and MLP columns are shared in balanced ranges.
	// Ranks 0 or 1: whole blocks.
	Rank, Ranks int
	// Part and Parts say that only one of so many parts of every block's bytes is held, and of what is outside of blocks;
	// Model.Shards brings them together. Parts 0 or 1: all bytes.
	Part, Parts int
}

// Has reports whether block i is held, whole or a half of it.
func (h Held) Has(i int) bool {
	in := func(r Range) bool { return i >= r.Start && i < r.End }
	return h.Blocks == nil || slices.ContainsFunc(h.Blocks, in)
}

// Half is the part of block i that is held, if it is.
func (h Held) Half(i int) Half {
	switch {
	case slices.Contains(h.MLPOnly, i):
		return MLPHalf
	case slices.Contains(h.AttentionOnly, i):
		return AttentionHalf
	}
	return WholeBlock
}

// Use is what a weight is for, where some holders can do without it.
type Use string

// The uses. Weights of any other kind go with their block, or with every holder.
const (
	ForEmbed     Use = "embed"     // Embed, and what Prepare makes for it alone
	ForHead      Use = "head"      // Head, and its modulation
	ForAttention Use = "attention" // the AttentionHalf of a block that can be cut
	ForMLP       Use = "mlp"       // its MLPHalf
)

// Uses reports whether a weight of block i, or outside of blocks, is held as far as its use decides.
func (h Held) Uses(i int, u Use) bool {
	switch u {
	case ForEmbed:
		return !h.NoEmbed
	case ForHead:
		return !h.NoHead
	case ForAttention:
		return h.Half(i) != MLPHalf
	case ForMLP:
		return h.Half(i) != AttentionHalf
	}
	return true
}

// Share returns the balanced range of n things (heads, MLP columns) that this rank takes.
func (h Held) Share(n int) Range {
	if h.Ranks <= 1 {
		return Range{0, n}
	}
	return Range{n * h.Rank / h.Ranks, n * (h.Rank + 1) / h.Ranks}
}
