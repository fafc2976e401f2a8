package plan

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"patchbay/models/dit"
)

// Speeds is how fast the devices of a plan's ranks are in proportion to each other, 1 to 100 by rank, 0 behind the last
// one. All zeros: they are alike. Tokens, heads of a Ulysses group, pictures and stages go by them, slices of a tensor
// group do not.
type Speeds [MaxRanks]uint8

// ParseSpeeds reads "100:32", a number for each rank.
func ParseSpeeds(text string) (s Speeds, ok bool) {
	list := strings.Split(text, ":")
	if len(list) > MaxRanks {
		return s, false
	}
	for r, v := range list {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 100 {
			return s, false
		}
		s[r] = uint8(n)
	}
	return s, true
}

// SpeedsOf is the proportion of positive speeds by rank; of equal ones it is zero.
func SpeedsOf(list []float64) (s Speeds) {
	if len(list) == 0 || slices.Min(list) == slices.Max(list) {
		return s
	}
	for r, v := range list {
		s[r] = uint8(max(1, math.Round(100*v/slices.Max(list))))
	}
	return s
}

// String returns the speeds in the syntax of ParseSpeeds.
func (s Speeds) String() string {
	var list []string
	for _, v := range s[:s.count()] {
		list = append(list, strconv.Itoa(int(v)))
	}
	return strings.Join(list, ":")
}

// count is how many ranks have one.
func (s Speeds) count() int {
	if n := slices.Index(s[:], 0); n >= 0 {
		return n
	}
	return len(s)
}

// shares is what each of n places gets in proportion, where place says which one a rank has: the slowest rank there
// counts, as all of them have the same ranges.
func (p Plan) shares(n int, place func(Coord) int) []int {
	out := slices.Repeat([]int{1}, n)
	if p.Speeds == (Speeds{}) {
		return out
	}
	clear(out)
	for r := range p.Ranks() {
		at := place(Mesh{Plan: p}.At(r))
		if speed := int(p.Speeds[r]); out[at] == 0 || speed < out[at] {
			out[at] = speed
		}
	}
	return out
}

// Places is what each place of the sequence gets of its tokens, in proportion; in spread evaluations stages are places
// too, outside.
func (p Plan) Places(spread bool) []int {
	if spread { // ranks keep their numbers
		p.Ring, p.Pipe = p.Pipe*p.Ring, 1
	}
	return p.shares(p.Ring*p.Ulysses, func(c Coord) int { return c.SequenceRank(p) })
}

// GroupHeads is which of n heads every rank of a Ulysses group attends with.
func (p Plan) GroupHeads(n int) []dit.Range {
	return Shared(n, p.shares(p.Ulysses, func(c Coord) int { return c.Ulysses }))
}

// Items is which of n pictures each data part has.
func (p Plan) Items(n int) []dit.Range {
	return Shared(n, p.shares(p.Data, func(c Coord) int { return c.Data }))
}

// StageSpeeds is the work that each stage does in a time, in proportion: that of its rank whose tokens take longest.
func (p Plan) StageSpeeds() []float64 {
	out := slices.Repeat([]float64{1}, p.Pipe)
	if p.Speeds == (Speeds{}) {
		return out
	}
	clear(out)
	places, all := p.Places(false), 0
	for _, n := range places {
		all += n
	}
	for r := range p.Ranks() {
		c := Mesh{Plan: p}.At(r)
		speed := float64(int(p.Speeds[r])*all) / float64(places[c.SequenceRank(p)])
		if at := &out[c.Pipe]; *at == 0 || speed < *at {
			*at = speed
		}
	}
	return out
}

// Shared cuts n things into contiguous ranges in proportion to shares, which are positive: one for each as long as
// there are, the rest by largest remainders (A. Hamilton, 1792), of equal ones the first. Equal shares give Balanced.
func Shared(n int, shares []int) []dit.Range {
	least, total := min(n/len(shares), 1), 0
	for _, s := range shares {
		total += s
	}
	rest := n - least*len(shares)
	out, order, left := make([]dit.Range, len(shares)), make([]int, len(shares)), rest
	for i, s := range shares {
		order[i], out[i].End = i, rest*s/total
		left -= out[i].End
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rest*shares[b]%total, rest*shares[a]%total) })
	for _, i := range order[:left] {
		out[i].End++
	}
	at := 0
	for i := range out {
		size := least + out[i].End
		out[i] = dit.Range{Start: at, End: at + size}
		at += size
	}
	return out
}
