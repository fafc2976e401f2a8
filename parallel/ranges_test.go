package parallel

import (
	"math"
	"math/rand/v2"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/published"
)

// tiles reports whether the ranges are neighbours that cover [0, n) in order; the smallest and the largest length come with it.
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

// TestBalancedIsAPartition: every count and every number of parts.
func TestBalancedIsAPartition(t *testing.T) {
	for n := range 257 {
		for parts := 1; parts <= 64; parts++ {
			r := balanced(n, parts)
			ok, least, most := tiles(r, n)
			if !ok || len(r) != parts || most-least > 1 {
				t.Fatalf("%d things in %d parts: %v", n, parts, r)
			}
		}
	}
}

// TestSequenceRowsArePartitions: text and image are cut for themselves, no rank has two tokens more than another, fewer than two where that is possible.
func TestSequenceRowsArePartitions(t *testing.T) {
	for _, lt := range []int{0, 1, 2, 3, 5, 7, 13, 20, 77, 256, 333, 512} {
		for li := 1; li <= 256; li++ {
			for parts := 1; parts <= 8; parts++ {
				rows := sequenceRows(lt, li, parts)
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

// TestPatchesArePartitions: exactly as many patches as asked for, none empty, equal in tokens with the text counted to the first unless the text alone is
// more than a share.
func TestPatchesArePartitions(t *testing.T) {
	for _, lt := range []int{0, 1, 13, 77, 512} {
		for li := 1; li <= 256; li++ {
			for m := 1; m <= min(li, 32); m++ {
				r := patchRanges(lt, li, m)
				ok, least, _ := tiles(r, li)
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

// dearest is the cost of the dearest range and the mean.
func dearest(ranges []dit.Range, cost []float64, extra [2]float64) (most, mean float64) {
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
		most, mean = max(most, sum), mean+sum/float64(len(ranges))
	}
	return most, mean
}

// TestStagesAreOptimal compares the cut with the best of all cuts on random costs.
func TestStagesAreOptimal(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		cost := make([]float64, 1+r.IntN(10))
		for i := range cost {
			cost[i] = float64(1 + r.IntN(20))
		}
		extra := [2]float64{float64(r.IntN(6)), float64(r.IntN(6))}
		parts := 1 + r.IntN(min(5, len(cost)))
		got := stages(cost, parts, extra)
		ok, least, _ := tiles(got, len(cost))
		if !ok || len(got) != parts || least < 1 {
			t.Fatalf("costs %v in %d stages: %v", cost, parts, got)
		}
		most, _ := dearest(got, cost, extra)
		if want := cheapest(cost, parts, extra); most > want*(1+1e-9) {
			t.Fatalf("costs %v, ends %v in %d stages: %v costs %v, the best %v", cost, extra, parts, got, most, want)
		}
	}
}

// cheapest is the least possible cost of the dearest of parts contiguous ranges, none empty, by trying all.
func cheapest(cost []float64, parts int, extra [2]float64) float64 {
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
			return sum + extra[1]
		}
		best := math.Inf(1)
		for end := at + 1; end < len(cost); end++ {
			sum += cost[end-1]
			best = min(best, max(sum, try(end, part+1)))
		}
		return best
	}
	return try(0, 0)
}

// halves counts lanes in half blocks.
func halves(lanes []lane) []dit.Range {
	out := make([]dit.Range, len(lanes))
	for i, l := range lanes {
		out[i] = dit.Range{Start: 2 * l.Start, End: 2 * l.End}
		if l.late {
			out[i].Start++
		}
		if l.early {
			out[i].End--
		}
	}
	return out
}

// TestStagesOfPublishedModels: with four blocks a stage or more the dearest stage is within 3 % of the mean, or within what cannot be divided: FLUX has 19
// blocks that can be cut in halves and 38 that cannot, all of one cost, so 8 stages are 7.5, 7.5 and six times 7.
func TestStagesOfPublishedModels(t *testing.T) {
	for _, name := range published.Names() {
		m, err := published.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		li := m.Spec.Tokens(1024/m.Scale, 1024/m.Scale).Tokens()
		cost := blockCosts(m.Spec, m.Text, li)
		dear := 0.0
		for _, c := range cost {
			dear = max(dear, c)
		}
		for parts := 2; parts <= 8 && 4*parts <= len(cost); parts++ {
			folded := skips(m.Spec)
			count := (Plan{Pipe: parts}).lanes(folded)
			r := laneRanges(m.Spec, m.Text, li, count)
			if ok, least, _ := tiles(halves(r), 2*len(cost)); !ok || least < 2 {
				t.Fatalf("%s on %d stages: %v", name, parts, r)
			}
			sums := make([]float64, parts)
			for k, l := range r {
				stage := min(k, count-1-k)
				if !folded {
					stage = k
				}
				for b := l.Start; b < l.End; b++ {
					part := halfWeights(m.Spec, m.Spec.Blocks[b], dit.MLPHalf) * float64(m.Spec.Width*m.Spec.Width) * float64(m.Text+li)
					switch l.half(b) {
					case dit.AttentionHalf:
						part = cost[b] - part
					case dit.WholeBlock:
						part = cost[b]
					}
					sums[stage] += part
				}
			}
			most, total := 0.0, 0.0
			for _, s := range sums {
				most, total = max(most, s), total+s
			}
			mean := total / float64(parts)
			unit := dear // what cannot be divided: a block, on folded stages a block and its mirror
			if folded {
				unit *= 2
			}
			ratio := most / mean
			if parts == 8 || ratio > 1.03 {
				t.Logf("%s on %d stages: the dearest is %.3f of the mean", name, parts, ratio)
			}
			if ratio > 1.03 && most > math.Ceil(mean/unit)*unit*1.001 {
				t.Errorf("%s on %d stages: the dearest is %.3f of the mean, %v", name, parts, ratio, r)
			}
			if name == "flux-dev" && ratio > 1.06 {
				t.Errorf("%s on %d stages: the dearest is %.3f of the mean, want at most 1.06 with half blocks", name, parts, ratio)
			}
		}
	}
}

// TestFoldedStagesMirror: a stage of a skip-connected model owns blocks and their mirror images, for every number of blocks and stages.
func TestFoldedStagesMirror(t *testing.T) {
	for n := 2; n <= 41; n++ {
		spec := &dit.Spec{Width: 8, Heads: 1, HeadDim: 8, PatchSize: 2, Channels: 4, OutChannels: 4, MLPRatio: 4}
		for i := range n {
			skip := -1
			if i > n/2 || n%2 == 0 && i >= n/2 {
				skip = n - 1 - i
			}
			spec.Blocks = append(spec.Blocks, dit.BlockSpec{Kind: dit.Cross, Skip: skip, Attends: 1})
		}
		for parts := 1; parts <= min(8, maxStages(spec)); parts++ {
			r := laneRanges(spec, 10, 64, (Plan{Pipe: parts}).lanes(true))
			if ok, least, _ := tiles(halves(r), 2*n); !ok || least < 2 || len(r) != 2*parts-1 {
				t.Fatalf("%d blocks on %d stages: %v", n, parts, r)
			}
			for k, lane := range r {
				if mirror := r[len(r)-1-k]; mirror.Start != n-lane.End || mirror.End != n-lane.Start {
					t.Fatalf("%d blocks on %d stages: lane %d is %v, its mirror %v", n, parts, k, lane, mirror)
				}
			}
		}
	}
}
