package plan

import "patchbay/models/dit"

// Balanced cuts n things into parts contiguous ranges whose sizes differ by at most one, larger ones first. Ranges may
// be empty when parts > n.
func Balanced(n, parts int) []dit.Range {
	out := make([]dit.Range, parts)
	at := 0
	for i := range out {
		size := n / parts
		if i < n%parts {
			size++
		}
		out[i] = dit.Range{Start: at, End: at + size}
		at += size
	}
	return out
}

// Heads is which heads every rank of a Ulysses group exchanges at once, of n: all of its own, or with Halves, where
// every rank has two, first one half of them and then the other.
func (p Plan) Heads(n int) [][]dit.Range {
	whole := Balanced(n, p.Ulysses)
	if !p.Halves || whole[p.Ulysses-1].Len() < 2 {
		return [][]dit.Range{whole}
	}
	halves := [][]dit.Range{make([]dit.Range, p.Ulysses), make([]dit.Range, p.Ulysses)}
	for u, r := range whole {
		for i, h := range Balanced(r.Len(), len(halves)) {
			halves[i][u] = dit.Range{Start: r.Start + h.Start, End: r.Start + h.End}
		}
	}
	return halves
}

// sequenceRows cuts a sequence of lt text and li image tokens over parts ranks: text and image alike in balanced
// contiguous ranges. Text gets its larger ranges at the front and image at the back, so that the sums differ by at most
// one where that is possible.
func sequenceRows(lt, li, parts int) []dit.Rows {
	text, image := Balanced(lt, parts), Balanced(li, parts)
	if lt%parts != 0 {
		image = reversedSizes(image)
	}
	out := make([]dit.Rows, parts)
	for i := range out {
		out[i] = dit.Rows{Text: text[i], Image: image[i]}
	}
	return out
}

// reversedSizes gives the ranges the sizes in reverse order.
func reversedSizes(r []dit.Range) []dit.Range {
	out := make([]dit.Range, len(r))
	at := 0
	for i := range out {
		n := r[len(r)-1-i].Len()
		out[i] = dit.Range{Start: at, End: at + n}
		at += n
	}
	return out
}

// stages cuts blocks of the given costs into parts contiguous ranges so that the most expensive range is as cheap as
// possible (exact, by binary search over the bound), none empty while there are blocks enough. extra[0] and extra[1]
// are added to the first and the last range (embed, head).
func stages(cost []float64, parts int, extra [2]float64) []dit.Range {
	total := extra[0] + extra[1]
	for _, c := range cost {
		total += c
	}
	low, high := 0.0, total
	for range 60 {
		mid := (low + high) / 2
		if fill(cost, parts, extra, mid) != nil {
			high = mid
		} else {
			low = mid
		}
	}
	// high is the least bound to the last bit: above it, stages of equal cost are filled from the front however rounding
	// went
	return fill(cost, parts, extra, high*(1+1e-12))
}

// fill packs blocks greedily into ranges that cost at most bound; nil if they do not fit, or if a range stays empty
// though there are blocks enough. It keeps one block for every later range.
func fill(cost []float64, parts int, extra [2]float64, bound float64) []dit.Range {
	bound *= 1 + 1e-12
	out := make([]dit.Range, parts)
	at := 0
	for i := range out {
		spent := 0.0
		if i == 0 {
			spent += extra[0]
		}
		if i == parts-1 {
			spent += extra[1]
		}
		start := at
		for at < len(cost) {
			if at > start && len(cost)-at <= parts-1-i {
				break // the others need one each
			}
			if spent+cost[at] > bound {
				break
			}
			spent += cost[at]
			at++
		}
		if spent > bound || at == start && len(cost) >= parts {
			return nil
		}
		out[i] = dit.Range{Start: start, End: at}
	}
	if at < len(cost) {
		return nil
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
		out = append(out, dit.Range{Start: first + r.Start, End: first + r.End})
	}
	out[len(out)-1].End += g.Pad
	return out
}
