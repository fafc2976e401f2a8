package plan

import (
	"fmt"
	"strings"
	"testing"

	"patchbay/models/dit"
)

// TestGatherOrder checks the order in which units are brought, as text: g is a gather, r a read from host memory.
// Blocks alternate between two slots. What is outside of them (e) is brought ahead of its use if its slot is free,
// which it is not beside the last of an even number of blocks. Blocks that are read are brought while the one before is
// in use, over the end of a step too, if their number is even. A part is read ahead of its gather.
func TestGatherOrder(t *testing.T) {
	for _, c := range []struct {
		held   dit.Held
		blocks int
		want   string
	}{
		{dit.Held{Parts: 2}, 1, "e: ge g0; 0: ; e: ; 0: ; e: ; e: ; 0: ; e: "},
		{
			dit.Held{Parts: 2},
			2,
			"e: ge g0; 0: g1; 1: ; e: ge; 0: g1; 1: ; e: ge; e: ; 0: g1; 1: ; e: ge",
		},
		{
			dit.Held{Parts: 2}, 3, "e: ge g0; 0: g1; 1: g2; 2: ge; e: g0; 0: g1; 1: g2; 2: ge; e: g0; e: ; 0: g1; 1: g2; " +
				"2: ge; e: g0",
		},
		{dit.Held{Stream: 2}, 3, "e: r1; 0: ; 1: r2; 2: ; e: ; 0: ; 1: ; 2: ; e: ; e: ; 0: ; 1: ; 2: ; e: "},
		{
			dit.Held{Stream: 4}, 4, "e: r0; 0: r1; 1: r2; 2: r3; 3: r0; e: ; 0: r1; 1: r2; 2: r3; 3: r0; e: ; e: ; 0: r1; " +
				"1: r2; 2: r3; 3: r0; e: ",
		},
		{
			dit.Held{Stream: 3}, 3, "e: r0; 0: r1; 1: r2; 2: ; e: r0; 0: ; 1: r2; 2: ; e: r0; e: ; 0: ; 1: r2; 2: ; e: r0",
		},
		{
			dit.Held{Parts: 2, Stream: 3}, 4, "e: ge r1 g0; 0: g1 r2; 1: g2 r3; 2: g3; 3: ; e: ge r1 g0; 0: g1; 1: g2 r3; " +
				"2: g3; 3: ; e: ge r1 g0; e: ; 0: g1; 1: g2 r3; 2: g3; 3: ; e: ge r1 g0",
		},
	} {
		slots, stagings := c.held.Places(c.blocks)
		g := NewGathers(slots, stagings, c.held.Parts > 1, dit.Range{End: c.blocks})
		name := func(u int) string {
			if u == c.blocks {
				return "e"
			}
			return fmt.Sprint(u)
		}
		var out []string
		var all []Bring
		use := func(unit int) {
			var units []string
			for _, b := range g.Use(unit) {
				all = append(all, b)
				units = append(units, map[bool]string{true: "r", false: "g"}[b.Read]+name(b.Unit))
			}
			out = append(out, name(unit)+": "+strings.Join(units, " "))
		}
		for step := range 3 {
			for u := range c.blocks + 1 {
				use((u + c.blocks) % (c.blocks + 1))
			}
			if step > 0 {
				use(c.blocks)
			}
		}
		if got := strings.Join(out, "; "); got != c.want {
			t.Errorf("%+v, %d blocks:\ngot  %s\nwant %s", c.held, c.blocks, got, c.want)
		}
		if got := Brought(c.held, c.blocks, dit.Range{End: c.blocks}, 2, true); fmt.Sprint(got) != fmt.Sprint(all) {
			t.Errorf("%+v, %d blocks: a session brings %v, want %v", c.held, c.blocks, got, all)
		}
	}
}

// TestStreamedBlocksAreSpread checks which blocks come from host memory: as many as asked for, evenly spread over those
// that are held.
func TestStreamedBlocksAreSpread(t *testing.T) {
	for _, c := range []struct {
		held   dit.Held
		blocks int
		want   string
	}{
		{dit.Held{}, 3, "..."},
		{dit.Held{Stream: 2}, 6, "..x..x"},
		{dit.Held{Stream: 4}, 6, ".xx.xx"},
		{dit.Held{Stream: 9}, 3, "xxx"},
		{dit.Held{Stream: 2, Blocks: []dit.Range{{Start: 1, End: 3}, {Start: 6, End: 8}}}, 9, "..x....x."},
	} {
		got := ""
		for _, streamed := range c.held.Streamed(c.blocks) {
			got += map[bool]string{true: "x", false: "."}[streamed]
		}
		if got != c.want {
			t.Errorf("%+v of %d blocks: %s, want %s", c.held, c.blocks, got, c.want)
		}
	}
}
