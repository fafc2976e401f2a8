package plan

import "patchbay/models/dit"

// Weights that are brought just before their use (dit.Shards). With shard=on (ZeRO stage 3, arXiv:1910.02054, sec. 5.3)
// ranks that would hold the same weights each hold a part of the bytes of every unit, and gather it; with stream=on
// each rank reads units from host memory; with both it reads its part, which is then gathered. A unit is a block, or
// everything outside of the blocks. It is brought while the one before it is in use, and its slot is then given to the
// one after that. All ranks of a group use units in one order, which depends only on the number of blocks, so gathers
// need no coordination.

// Gathers decides which units are brought when. There are two slots, and a unit always uses the same one; so do the
// parts of units that are gathered, with their staging places.
type Gathers struct {
	slots, stagings []int     // by unit, as in dit.Unit
	gathered        bool      // units are gathered, not only read
	blocks          dit.Range // that the rank uses in every evaluation
	slot, staging   [2]int    // unit that each place holds or is about to receive, -1: none
}

// Bring is one step of bringing a unit: this rank's part of it is read from host memory, to its staging place if it has
// one and else to its slot, or the unit is gathered into its slot.
type Bring struct {
	Unit int
	Read bool // else it is gathered
}

// NewGathers returns a Gathers with nothing brought, for a rank that uses a range of blocks.
func NewGathers(slots, stagings []int, gathered bool, blocks dit.Range) *Gathers {
	return &Gathers{slots, stagings, gathered, blocks, [2]int{-1, -1}, [2]int{-1, -1}}
}

// Use returns what to do, in order, when a unit is used now: to bring it unless it is there already, then to bring the
// next one that is not always in place, if it has another slot and is not there already. Behind a gather, the part that
// is gathered next is read, if it has another staging place.
func (g *Gathers) Use(unit int) (out []Bring) {
	for _, u := range []int{unit, g.next(unit, g.slots)} {
		if u < 0 || g.slots[u] < 0 || g.slot[g.slots[u]] == u || u != unit && g.slots[u] == g.slots[unit] {
			continue
		}
		g.slot[g.slots[u]] = u
		if !g.gathered {
			out = append(out, Bring{u, true})
			continue
		}
		out = append(append(out, g.stage(u)...), Bring{u, false})
		if next := g.next(u, g.stagings); next >= 0 && g.stagings[next] != g.stagings[u] {
			out = append(out, g.stage(next)...)
		}
	}
	return out
}

// stage returns the step that brings this rank's part of a unit to its staging place, none if it has none or is there.
func (g *Gathers) stage(u int) []Bring {
	if g.stagings[u] < 0 || g.staging[g.stagings[u]] == u {
		return nil
	}
	g.staging[g.stagings[u]] = u
	return []Bring{{u, true}}
}

// next returns which of the units with a place is used next after one, -1: none.
func (g *Gathers) next(unit int, places []int) int {
	for u := g.after(unit); u != unit; u = g.after(u) {
		if places[u] >= 0 {
			return u
		}
	}
	return -1
}

// after returns the unit that is used after another one.
func (g *Gathers) after(unit int) int {
	ends := len(g.slots) - 1
	switch {
	case unit == ends:
		return g.blocks.Start
	case unit+1 < g.blocks.End:
		return unit + 1
	}
	return ends
}

// Brought returns what a session brings, in order, on a rank that holds a part of a model of n blocks and uses a range
// of them in each of so many micro-steps, after preparing them: everything outside of blocks before the blocks and, if
// the rank has the head, after them.
func Brought(held dit.Held, n int, blocks dit.Range, steps int, head bool) (out []Bring) {
	slots, stagings := held.Places(n)
	g := NewGathers(slots, stagings, held.Parts > 1, blocks)
	for step := range steps + 1 {
		out = append(out, g.Use(n)...)
		for b := blocks.Start; b < blocks.End; b++ {
			out = append(out, g.Use(b)...)
		}
		if step > 0 && head {
			out = append(out, g.Use(n)...)
		}
	}
	return out
}
