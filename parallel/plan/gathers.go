package plan

// Weights in parts (shard=on; ZeRO stage 3, arXiv:1910.02054, sec. 5.3): ranks that would hold the same weights hold a
// part of each unit's bytes. A unit is gathered just before it is used, the next one while it is used, and its place is
// given to the one after that. All ranks of the group use units in one order, which depends on nothing but the number
// of blocks, so gathers meet without any agreement.

// Gathers says which units are gathered when: two places, a unit always in the same one.
type Gathers struct {
	place func(unit int) int
	in    [2]int // unit whose bytes are in a place or under way to it, -1: none
}

// NewGathers starts with both places empty; place says which of them a unit goes to.
func NewGathers(place func(unit int) int) *Gathers {
	return &Gathers{place: place, in: [2]int{-1, -1}}
}

// Use lists the units to be gathered, in order, when unit is used and next will be: unit itself if it is not there yet,
// then next if its place is free.
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

// UnitOrder calls use with every unit and the one after it, as a session does with n blocks: once to prepare, then for
// each evaluation what is outside of blocks (for the embedding), the blocks, and what is outside of them (for the
// head).
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

// UnitBuffer is the place of a unit of n blocks: they alternate, and what is outside of blocks comes before the first.
func UnitBuffer(unit, n int) int {
	if unit == n {
		return 1
	}
	return unit % 2
}

// GatheredUnits lists the units that a session gathers, in order.
func GatheredUnits(blocks, evaluations int) []int {
	var out []int
	g := NewGathers(func(u int) int { return UnitBuffer(u, blocks) })
	UnitOrder(blocks, evaluations, func(unit, next int) { out = append(out, g.Use(unit, next)...) })
	return out
}
