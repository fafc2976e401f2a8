package plan

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"patchbay/models/dit"
)

// Speeds holds the relative speeds of the devices of a plan's ranks, 1 to 100 by rank and 0 after the last rank. All
// zeros: they are alike. Tokens, heads of a Ulysses group, images and stages are divided in proportion, slices of a
// tensor group are not.
type Speeds [MaxRanks]uint8

// ParseSpeeds reads one number from 1 to 100 for each rank, as in "100:32".
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

// SpeedsOf returns the relative speeds of a list of positive speeds by rank; zero if they are equal.
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

// count returns how many ranks have a speed.
func (s Speeds) count() int {
	if n := slices.Index(s[:], 0); n >= 0 {
		return n
	}
	return len(s)
}

// shares returns the relative share of each of n places, where place maps a rank to its place. All ranks at a place
// have the same ranges, so the slowest one counts.
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

// Places returns the relative share of each place in the sequence. In spread evaluations pipe is the outermost axis.
func (p Plan) Places(spread bool) []int {
	if spread { // rank numbers stay the same
		p.Ring, p.Pipe = p.Pipe*p.Ring, 1
	}
	return p.shares(p.Ring*p.Ulysses, func(c Coord) int { return c.SequenceRank(p) })
}

// GroupHeads returns which of n heads each rank of a Ulysses group attends with.
func (p Plan) GroupHeads(n int) []dit.Range {
	return Shared(n, p.shares(p.Ulysses, func(c Coord) int { return c.Ulysses }))
}

// Items returns which of n images each data part computes.
func (p Plan) Items(n int) []dit.Range {
	return Shared(n, p.shares(p.Data, func(c Coord) int { return c.Data }))
}

// StageSpeeds returns the relative speed of each stage: that of its rank whose tokens take longest.
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

// Shared cuts n things into contiguous ranges so that the one that takes longest for its share takes as short as
// possible: one after the other, things go where the range would then take least (T. Jefferson's apportionment, 1792),
// ties to the first. Shares must be positive; each range gets at least one thing if n allows it. With equal shares the
// result is that of Balanced.
func Shared(n int, shares []int) []dit.Range {
	least, total, left := min(n/len(shares), 1), 0, n
	for _, s := range shares {
		total += s
	}
	sizes := make([]int, len(shares))
	for i, s := range shares {
		sizes[i] = max(least, n*s/total) // nobody gets less in the end but to give others their one
		left -= sizes[i]
	}
	for ; left > 0; left-- {
		to := 0
		for i, s := range shares {
			if (sizes[i]+1)*shares[to] < (sizes[to]+1)*s {
				to = i
			}
		}
		sizes[to]++
	}
	for ; left < 0; left++ {
		from := -1
		for i, s := range shares {
			if sizes[i] > least && (from < 0 || sizes[i]*shares[from] >= sizes[from]*s) {
				from = i
			}
		}
		sizes[from]--
	}
	out, at := make([]dit.Range, len(shares)), 0
	for i, size := range sizes {
		out[i] = dit.Range{Start: at, End: at + size}
		at += size
	}
	return out
}
