package plan

// Sharded weights (shard=on; ZeRO stage 3, arXiv:1910.02054, sec. 5.3): ranks that would hold the same weights each
// hold a part of the bytes of every unit. A unit is a block, or everything outside of the blocks. It is gathered just
// before its use, the next one while it is in use, and its buffer is then given to the one after that. All ranks of the
// group use units in one order, which depends only on the number of blocks, so gathers need no coordination.

// Gathers decides which units are gathered when. There are two buffers, and a unit always uses the same one.
type Gathers struct {
	place func(unit int) int
	in    [2]int // unit that a buffer holds or is about to receive, -1: none
}

// NewGathers returns a Gathers with both buffers empty. place returns the buffer of a unit, 0 or 1.
func NewGathers(place func(unit int) int) *Gathers {
	return &Gathers{place: place, in: [2]int{-1, -1}}
}

// Use returns the units to gather, in order, when unit is used now and next after it: unit itself unless it is there
// already, then next if it has the other buffer and is not there already.
func (g *Gathers) Use(unit, next int) []int {
	var out []int
	for _, u := range []int{unit, next} {
		if p := g.place(u); g.in[p] != u && (u == unit || p != g.place(unit)) {
			g.in[p] = u
			out = append(out, u)
		}
	}
	return out
}

// UnitOrder calls use with every unit and its successor, in the order of a session with n blocks: unit n (everything
// outside of the blocks) and the blocks once to prepare, then for each evaluation unit n (for the embedding), the
// blocks, and unit n (for the head).
func UnitOrder(n, evaluations int, use func(unit, next int)) {
	blocks := func() {
		for b := range n {
			use(b, b+1)
		}
	}
	use(n, 0)
	blocks()
	for range evaluations {
		use(n, 0)
		blocks()
		use(n, 0)
	}
}

// UnitBuffer returns the buffer of a unit of n blocks. Blocks alternate, and unit n comes before block 0.
func UnitBuffer(unit, n int) int {
	if unit == n {
		return 1
	}
	return unit % 2
}

// GatheredUnits returns the units that a session gathers, in order.
func GatheredUnits(blocks, evaluations int) []int {
	var out []int
	g := NewGathers(func(u int) int { return UnitBuffer(u, blocks) })
	UnitOrder(blocks, evaluations, func(unit, next int) { out = append(out, g.Use(unit, next)...) })
	return out
}
