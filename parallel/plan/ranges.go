package plan

import (
	"math"
	"slices"

	"patchbay/models/dit"
)

// Balanced cuts n things into contiguous ranges, one per part, whose sizes differ by at most one, larger ones first.
// Ranges may be empty when parts > n.
func Balanced(n, parts int) []dit.Range {
	out := make([]dit.Range, parts)
	start := func(i int) int { return i*(n/parts) + min(i, n%parts) }
	for i := range out {
		out[i] = dit.Range{Start: start(i), End: start(i + 1)}
	}
	return out
}

func behind(at int, r dit.Range) dit.Range { return dit.Range{Start: at + r.Start, End: at + r.End} }

// sequenceRows divides a sequence of lt text and li image tokens among ranks in proportion to shares, text and image
// alike in contiguous ranges. With equal shares, text has its larger ranges at the front and image at the back, so that
// the sums differ by at most one where that is possible.
func sequenceRows(lt, li int, shares []int) []dit.Rows {
	text, image := Shared(lt, shares), Shared(li, shares)
	if lt%len(shares) != 0 && slices.Min(shares) == slices.Max(shares) {
		image = reversedSizes(image)
	}
	out := make([]dit.Rows, len(shares))
	for i := range out {
		out[i] = dit.Rows{Text: text[i], Image: image[i]}
	}
	return out
}

// reversedSizes returns ranges over the same things, with the sizes of r in reverse order.
func reversedSizes(r []dit.Range) []dit.Range {
	out := make([]dit.Range, len(r))
	end := r[len(r)-1].End
	for i, v := range r {
		out[len(r)-1-i] = dit.Range{Start: end - v.End, End: end - v.Start}
	}
	return out
}

// stages cuts blocks with the given costs into contiguous ranges for stages with the given speeds so that the slowest
// stage takes as little time as possible. Ranges are filled from the front, and none is empty while there are enough
// blocks. extra[0] and extra[1] are added to the first and the last range (embedding, head).
func stages(cost, speeds []float64, extra [2]float64) []dit.Range {
	n, parts := len(cost), len(speeds)
	// each calls visit with every possible end of a stage i that starts at block at, and with its time, until visit
	// returns false; it leaves a block for each later stage
	each := func(i, at int, visit func(end int, seconds float64) bool) {
		sum := 0.0
		if i == 0 {
			sum += extra[0]
		}
		if i == parts-1 {
			sum += extra[1]
		}
		for end, most := at, max(min(at+1, n), n-(parts-1-i)); end <= most; end++ {
			if end > at {
				sum += cost[end-1]
			}
			if end-at >= min(1, n/parts) && !visit(end, sum/speeds[i]) {
				return
			}
		}
	}
	rest := make([][]float64, parts+1) // [i][at]: least time of the slowest stage from i on, with blocks from at on
	for i := range rest {
		rest[i] = slices.Repeat([]float64{math.Inf(1)}, n+1)
	}
	rest[parts][n] = 0
	for i := parts - 1; i >= 0; i-- {
		for at := range n + 1 {
			each(i, at, func(end int, seconds float64) bool {
				rest[i][at] = min(rest[i][at], max(seconds, rest[i+1][end]))
				return seconds < rest[i][at]
			})
		}
	}
	bound := rest[0][0] * (1 + 2e-12) // fill stages of equal cost from the front whatever rounding did
	out, at := make([]dit.Range, parts), 0
	for i := range out {
		out[i].Start = at
		each(i, out[i].Start, func(end int, seconds float64) bool {
			if max(seconds, rest[i+1][end]) <= bound {
				at = end
			}
			return seconds <= bound
		})
		out[i].End = at
	}
	return out
}

// PatchRanges cuts the image tokens of g into patches of equal cost. Every token of a micro-step attends to the whole
// sequence, so cost is proportional to tokens. The first patch also carries the lt text tokens and has fewer image
// tokens in return, but at least one. Padding tokens belong to the last patch; every patch has some tokens of the
// image.
func PatchRanges(lt int, g dit.Grid, patches int) []dit.Range {
	if patches == 1 {
		return []dit.Range{{End: g.Tokens()}}
	}
	li := g.Unpadded()
	first := (lt+li+patches/2)/patches - lt
	first = min(max(first, 1), li-(patches-1))
	out := []dit.Range{{End: first}}
	for _, r := range Balanced(li-first, patches-1) {
		out = append(out, behind(first, r))
	}
	out[len(out)-1].End += g.Pad
	return out
}
