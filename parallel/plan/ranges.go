package plan

import (
	"math"
	"slices"

	"patchbay/models/dit"
)

// Balanced cuts n things into parts contiguous ranges whose sizes differ by at most one, larger ones first. Ranges may
// be empty when parts > n.
func Balanced(n, parts int) []dit.Range {
	out := make([]dit.Range, parts)
	start := func(i int) int { return i*(n/parts) + min(i, n%parts) }
	for i := range out {
		out[i] = dit.Range{Start: start(i), End: start(i + 1)}
	}
	return out
}

// behind is r as it comes behind at things more.
func behind(at int, r dit.Range) dit.Range { return dit.Range{Start: at + r.Start, End: at + r.End} }

// Heads is which heads every rank of a Ulysses group exchanges at once, of n: all of its own, or with Halves, where
// every rank has two, first one half of them and then the other.
func (p Plan) Heads(n int) [][]dit.Range {
	whole := p.GroupHeads(n)
	if !p.Halves || slices.ContainsFunc(whole, func(r dit.Range) bool { return r.Len() < 2 }) {
		return [][]dit.Range{whole}
	}
	halves := [][]dit.Range{make([]dit.Range, p.Ulysses), make([]dit.Range, p.Ulysses)}
	for u, r := range whole {
		for i, h := range Balanced(r.Len(), len(halves)) {
			halves[i][u] = behind(r.Start, h)
		}
	}
	return halves
}

// sequenceRows cuts a sequence of lt text and li image tokens over ranks with these shares: text and image alike in
// contiguous ranges. Of equal shares text gets its larger ranges at the front and image at the back, so that the sums
// differ by at most one where that is possible.
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

// reversedSizes gives the ranges the sizes in reverse order.
func reversedSizes(r []dit.Range) []dit.Range {
	out := make([]dit.Range, len(r))
	end := r[len(r)-1].End
	for i, v := range r {
		out[len(r)-1-i] = dit.Range{Start: end - v.End, End: end - v.Start}
	}
	return out
}

// stages cuts blocks of the given costs into contiguous ranges for stages of these speeds so that the one that takes
// longest takes as short as possible, filled from the front, none empty while there are blocks enough. extra[0] and
// extra[1] are added to the first and the last range (embed, head).
func stages(cost, speeds []float64, extra [2]float64) []dit.Range {
	n, parts := len(cost), len(speeds)
	// each visits the ends of stage i from block at on with its time, until told to stop; it leaves a block to each later
	// stage
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
	rest := make([][]float64, parts+1) // the least time of the longest of the stages from i on, from a block on
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
	bound := rest[0][0] * (1 + 2e-12) // stages of equal cost are filled from the front however rounding went
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
// sequence, so cost goes with tokens; the first patch also carries the lt text tokens and has fewer image tokens for
// it, at least one. Tokens that the network adds go with the last patch: every patch has some of the picture.
func PatchRanges(lt int, g dit.Grid, patches int) []dit.Range {
	if patches == 1 {
		return []dit.Range{{End: g.Tokens()}}
	}
	li := g.Y * g.X
	first := (lt+li+patches/2)/patches - lt
	first = min(max(first, 1), li-(patches-1))
	out := []dit.Range{{End: first}}
	for _, r := range Balanced(li-first, patches-1) {
		out = append(out, behind(first, r))
	}
	out[len(out)-1].End += g.Pad
	return out
}
