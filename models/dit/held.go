package dit

// Held says which part of a model's weights a rank holds. The zero Held is everything. Embedders, conditioning and head are always held.
type Held struct {
	// Blocks are the ranges of blocks that are held; nil: all. Folded stages of skip-connected models hold two ranges.
	Blocks []Range
	// Rank and Ranks give the slice of a tensor group: attention heads and MLP columns are shared in balanced ranges. Ranks 0 or 1: whole blocks.
	Rank, Ranks int
	// Part and Parts say that only one of so many parts of every block's bytes is held, and of what is outside of blocks; Model.Shards brings them together.
	// Parts 0 or 1: all bytes.
	Part, Parts int
}

// Has reports whether block i is held.
func (h Held) Has(i int) bool {
	if h.Blocks == nil {
		return true
	}
	for _, r := range h.Blocks {
		if i >= r.Start && i < r.End {
			return true
		}
	}
	return false
}

// Share returns the balanced range of n things (heads, MLP columns) that this rank takes.
func (h Held) Share(n int) Range {
	if h.Ranks <= 1 {
		return Range{0, n}
	}
	return Range{n * h.Rank / h.Ranks, n * (h.Rank + 1) / h.Ranks}
}
