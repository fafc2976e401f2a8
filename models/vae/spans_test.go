package vae

import (
	"math"
	"slices"
	"testing"
)

// TestSpans compares the tiles of one axis with ComfyUI's split_tiles, written out: equal tiles of 16, overlaps of 4 at
// least, what is left given to the first of them.
func TestSpans(t *testing.T) {
	for n := 1; n <= 200; n++ {
		got := spans(n)
		if n <= 16 {
			if len(got) != 1 || got[0] != (span{0, n, 0}) {
				t.Errorf("%d: %v", n, got)
			}
			continue
		}
		count := int(math.Ceil(float64(n) / 16))
		for 16*count-4*(count-1) < n {
			count++
		}
		overlaps := slices.Repeat([]int{4}, count-1)
		for i := range 16*count - 4*(count-1) - n {
			overlaps[i%(count-1)]++
		}
		start := 0
		for i, s := range got {
			if i > 0 {
				start += 16 - overlaps[i-1]
			}
			if i >= count || s.start != start || s.size != 16 || i > 0 && s.overlap != overlaps[i-1] {
				t.Fatalf("%d: tile %d is %v, want start %d, overlaps %v", n, i, s, start, overlaps)
			}
		}
		if len(got) != count || start+16 != n {
			t.Errorf("%d: %d tiles end at %d, want %d", n, len(got), start+16, count)
		}
	}
}
