package dit

import "slices"

// Held says which part of a model's weights a rank holds. The zero Held is everything. Weights outside blocks that
// Prepare and Modulate apply to text and timestep are always held, unless Embed or Head alone needs the result.
type Held struct {
	// Blocks are the ranges of blocks that are held; nil: all. Folded stages of models with skip connections hold two
	// ranges.
	Blocks []Range
	// NoEmbed and NoHead leave out what Embed alone and Head alone need: stages between the first and the last do not
	// use it.
	NoEmbed, NoHead bool
	// Rank and Ranks give the slice of a tensor group: attention heads and MLP columns are split into balanced ranges.
	// Ranks 0 or 1: whole blocks.
	Rank, Ranks int
	// Part and Parts say that only one of Parts parts is held of the bytes of every block and of what is outside of
	// blocks. Model.Shards gathers them. Parts 0 or 1: all bytes.
	Part, Parts int
	// Stream says that so many of the held blocks are not kept on the device, but brought from host memory before each
	// use (Streamed says which ones). 0: none.
	Stream int
}

func (h Held) Has(i int) bool {
	return h.Blocks == nil || slices.ContainsFunc(h.Blocks, func(r Range) bool { return r.Has(i) })
}

// Use says what a weight is for, where some ranks can do without it.
type Use string

// The uses. A weight without one is held wherever its block is, or by every rank.
const (
	ForEmbed Use = "embed" // Embed, and what Prepare computes for it alone
	ForHead  Use = "head"  // Head, and its modulation
)

// Uses reports whether a weight is held as far as its use decides.
func (h Held) Uses(u Use) bool {
	switch u {
	case ForEmbed:
		return !h.NoEmbed
	case ForHead:
		return !h.NoHead
	}
	return true
}

// Share returns this rank's balanced range of n things (heads, MLP columns).
func (h Held) Share(n int) Range {
	if h.Ranks <= 1 {
		return Range{0, n}
	}
	return Range{n * h.Rank / h.Ranks, n * (h.Rank + 1) / h.Ranks}
}

// Split is parameters that the ranks of a tensor group share in whole units (Held.Share), such as heads.
type Split struct {
	Units  int
	Params int64 // of one unit
}

// HeldParams returns how many parameters of the block a rank of a tensor group holds.
func (b BlockSpec) HeldParams(h Held) int64 {
	n := b.Params
	for _, s := range b.Split {
		n -= int64(s.Units-h.Share(s.Units).Len()) * s.Params
	}
	return n
}

// Streamed reports for every block of a model with n of them whether it is brought from host memory. Those blocks are
// spread evenly over the held ones, so that each has as much time to arrive as the others.
func (h Held) Streamed(n int) []bool {
	out, held := make([]bool, n), 0
	for b := 0; b < n && h.Stream > 0; b++ {
		if h.Has(b) {
			held++
		}
	}
	stream, before := min(h.Stream, held), 0
	for b := 0; b < n && held > 0; b++ {
		if h.Has(b) {
			out[b] = (before+1)*stream/held > before*stream/held
			before++
		}
	}
	return out
}

// Places returns where every unit of a model with n blocks is brought: its slot (Unit.Slot), and the place of this
// rank's part before it is gathered (Unit.Staging).
func (h Held) Places(n int) (slots, stagings []int) {
	streamed := append(h.Streamed(n), false)
	return Slots(n+1, func(u int) bool { return h.Parts > 1 || streamed[u] }),
		Slots(n+1, func(u int) bool { return h.Parts > 1 && streamed[u] })
}

// Slots assigns places to units that are brought: blocks alternate between two, and the last unit, which is used before
// the first block, has the other one than that. Units that are always in place have -1.
func Slots(units int, brought func(unit int) bool) []int {
	out, next := make([]int, units), 0
	for u := range out {
		switch {
		case !brought(u):
			out[u] = -1
		case u == units-1:
			out[u] = 1
		default:
			out[u], next = next, 1-next
		}
	}
	return out
}
