package plan

import (
	"fmt"
	"strings"
	"testing"
)

// TestGatherOrder checks the order of gathers, as text. Blocks alternate between two places. What is outside of them
// (e) is gathered ahead of its use if its place is free, which it is not beside the last of an even number of blocks.
func TestGatherOrder(t *testing.T) {
	for _, c := range []struct {
		blocks int
		want   string
	}{
		{1, "use e: e 0; use 0: ; use e: ; use 0: ; use e: ; use e: ; use 0: ; use e: "},
		{2, "use e: e 0; use 0: 1; use 1: ; use e: e; use 0: 1; use 1: ; use e: e; use e: ; use 0: 1; use 1: ; use e: e"},
		{3, "use e: e 0; use 0: 1; use 1: 2; use 2: e; use e: 0; use 0: 1; use 1: 2; use 2: e; use e: 0; use e: ; use 0: " +
			"1; use 1: 2; use 2: e; use e: 0"},
	} {
		g := NewGathers(func(u int) int { return UnitBuffer(u, c.blocks) })
		name := func(u int) string {
			if u == c.blocks {
				return "e"
			}
			return fmt.Sprint(u)
		}
		var out []string
		UnitOrder(c.blocks, 2, func(unit, next int) {
			var units []string
			for _, u := range g.Use(unit, next) {
				units = append(units, name(u))
			}
			out = append(out, "use "+name(unit)+": "+strings.Join(units, " "))
		})
		if got := strings.Join(out, "; "); got != c.want {
			t.Errorf("%d blocks:\ngot  %s\nwant %s", c.blocks, got, c.want)
		}
	}
}
