package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"patchbay/models/dit"
)

// tiles reports whether the ranges cover [0, n) in order without gaps, and returns the smallest and largest length.
func tiles(ranges []dit.Range, n int) (ok bool, least, most int) {
	at, least := 0, math.MaxInt
	for _, r := range ranges {
		if r.Start != at || r.End < r.Start {
			return false, 0, 0
		}
		at = r.End
		least, most = min(least, r.Len()), max(most, r.Len())
	}
	return at == n, least, most
}

// TestBalancedIsAPartition checks every count and number of parts.
func TestBalancedIsAPartition(t *testing.T) {
	for n := range 257 {
		for parts := 1; parts <= 64; parts++ {
			r := Balanced(n, parts)
			ok, least, most := tiles(r, n)
			if !ok || len(r) != parts || most-least > 1 {
				t.Fatalf("%d things in %d parts: %v", n, parts, r)
			}
		}
	}
}

// TestSequenceRowsArePartitions checks that text and image are each partitioned, and that the ranks' numbers of tokens
// differ by at most one.
func TestSequenceRowsArePartitions(t *testing.T) {
	for _, lt := range []int{0, 1, 2, 3, 5, 7, 13, 20, 77, 256, 333, 512} {
		for li := 1; li <= 256; li++ {
			for parts := 1; parts <= 8; parts++ {
				rows := sequenceRows(lt, li, slices.Repeat([]int{7}, parts))
				text, image := make([]dit.Range, parts), make([]dit.Range, parts)
				least, most := math.MaxInt, 0
				for i, r := range rows {
					text[i], image[i] = r.Text, r.Image
					least, most = min(least, r.Len()), max(most, r.Len())
				}
				okText, _, _ := tiles(text, lt)
				okImage, _, _ := tiles(image, li)
				if !okText || !okImage || len(rows) != parts || most-least > 1 {
					t.Fatalf("%d text and %d image tokens over %d ranks: %v", lt, li, parts, rows)
				}
			}
		}
	}
}

// TestPatchesArePartitions checks that there are exactly as many patches as asked for, none empty, and that their
// tokens, with the text counted for the first, differ by at most 2, unless the text alone exceeds a share.
func TestPatchesArePartitions(t *testing.T) {
	for _, lt := range []int{0, 1, 13, 77, 512} {
		for li := 1; li <= 256; li++ {
			for m := 1; m <= min(li, 32); m++ {
				r := PatchRanges(lt, dit.Grid{Y: 1, X: li}, m)
				ok, least, _ := tiles(r, li)
				padded := PatchRanges(lt, dit.Grid{Y: 1, X: li, Pad: 7}, m)
				if last := padded[m-1]; last.End != li+7 || last.Start != r[m-1].Start {
					t.Fatalf("%d image tokens and 7 more in %d patches: %v, without them %v", li, m, padded, r)
				}
				if sound := PatchRanges(lt, dit.Grid{Y: 1, X: li - li/3, Sound: li / 3}, m); !slices.Equal(sound, r) {
					t.Fatalf("%d of %d image tokens are sound, in %d patches: %v, want %v", li/3, li, m, sound, r)
				}
				if !ok || len(r) != m || least < 1 {
					t.Fatalf("%d text and %d image tokens in %d patches: %v", lt, li, m, r)
				}
				if r[0].Len() == 1 {
					continue // the text takes the whole share
				}
				low, high := lt+r[0].Len(), lt+r[0].Len()
				for _, p := range r[1:] {
					low, high = min(low, p.Len()), max(high, p.Len())
				}
				if high-low > 2 {
					t.Fatalf("%d text and %d image tokens in %d patches: %v, which cost %d to %d tokens", lt, li, m, r, low, high)
				}
			}
		}
	}
}

// dearest returns the time of the slowest range, and the mean.
func dearest(ranges []dit.Range, cost, speeds []float64, extra [2]float64) (most, mean float64) {
	for i, r := range ranges {
		sum := 0.0
		for _, c := range cost[r.Start:r.End] {
			sum += c
		}
		if i == 0 {
			sum += extra[0]
		}
		if i == len(ranges)-1 {
			sum += extra[1]
		}
		sum /= speeds[i]
		most, mean = max(most, sum), mean+sum/float64(len(ranges))
	}
	return most, mean
}

// TestStagesAreOptimal compares the cut with the best of all cuts on random costs and speeds.
func TestStagesAreOptimal(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		cost := make([]float64, 1+r.IntN(10))
		for i := range cost {
			cost[i] = float64(1 + r.IntN(20))
		}
		extra := [2]float64{float64(r.IntN(6)), float64(r.IntN(6))}
		parts := 1 + r.IntN(min(5, len(cost)))
		speeds := make([]float64, parts)
		for i := range speeds {
			speeds[i] = float64(1 + r.IntN(4))
		}
		got := stages(cost, speeds, extra)
		ok, least, _ := tiles(got, len(cost))
		if !ok || len(got) != parts || least < 1 {
			t.Fatalf("costs %v in %d stages: %v", cost, parts, got)
		}
		most, _ := dearest(got, cost, speeds, extra)
		if want := cheapest(cost, speeds, extra); !(most <= want*(1+1e-9)) {
			t.Fatalf("costs %v, ends %v, speeds %v: %v takes %v, the best %v", cost, extra, speeds, got, most, want)
		}
	}
}

// cheapest returns the smallest possible time of the slowest of contiguous non-empty ranges, by trying all cuts.
func cheapest(cost, speeds []float64, extra [2]float64) float64 {
	parts := len(speeds)
	var try func(at, part int) float64
	try = func(at, part int) float64 {
		sum := 0.0
		if part == 0 {
			sum = extra[0]
		}
		if part == parts-1 {
			if at == len(cost) {
				return math.Inf(1)
			}
			for _, c := range cost[at:] {
				sum += c
			}
			return (sum + extra[1]) / speeds[part]
		}
		best := math.Inf(1)
		for end := at + 1; end < len(cost); end++ {
			sum += cost[end-1]
			best = min(best, max(sum/speeds[part], try(end, part+1)))
		}
		return best
	}
	return try(0, 0)
}
