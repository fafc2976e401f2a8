package forecast

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/hunyuan"
	"patchbay/models/published"
	"patchbay/models/sd3"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// tiled reports whether the ranges cover [0, n) in order without gaps, and none is empty.
func tiled(ranges []dit.Range, n int) bool {
	at := 0
	for _, r := range ranges {
		if r.Start != at || r.End <= r.Start {
			return false
		}
		at = r.End
	}
	return at == n
}

// stageSums returns the cost of every stage: its lanes, the embedding on the first stage and the head on that of the
// last lane.
func stageSums(lanes []dit.Range, costs []float64, ends [2]float64, parts int) []float64 {
	sums := make([]float64, parts)
	at := func(k int) int { return min(k, 2*parts-2-k) } // straight pipelines end before the fold
	for k, l := range lanes {
		for b := l.Start; b < l.End; b++ {
			sums[at(k)] += costs[b]
		}
	}
	sums[0] += ends[0]
	sums[at(len(lanes)-1)] += ends[1]
	return sums
}

// leastDearest returns the smallest possible cost of the most expensive of parts contiguous non-empty ranges.
func leastDearest(cost []float64, parts int, first, last float64) float64 {
	n := len(cost)
	best := make([]float64, n+1) // of the first i pieces in the stages so far
	for i := range best {
		best[i] = math.Inf(1)
	}
	best[0] = 0
	for p := range parts {
		next := make([]float64, n+1)
		for end := range next {
			next[end] = math.Inf(1)
			sum := 0.0
			for start := end - 1; start >= 0; start-- {
				sum += cost[start]
				all := sum
				if p == 0 {
					all += first
				}
				if p == parts-1 {
					all += last
				}
				next[end] = min(next[end], max(best[start], all))
			}
		}
		best = next
	}
	return best[n]
}

// leastStage returns the smallest possible cost of the most expensive stage of a model. A folded stage takes a block
// and its mirror image.
func leastStage(spec *dit.Spec, costs []float64, ends [2]float64, parts int) float64 {
	if !plan.Skips(spec) {
		return leastDearest(costs, parts, ends[0], ends[1])
	}
	var list []float64
	for b := range len(costs) / 2 {
		list = append(list, costs[b]+costs[len(costs)-1-b])
	}
	return leastDearest(list, parts, ends[0]+ends[1], 0)
}

// givenCosts returns block costs to balance: those predicted from device rates, and uneven ones.
func givenCosts(t *testing.T, m *published.Model, parts int) map[string]func() ([]float64, [2]float64) {
	t.Helper()
	w := Workload{
		Spec: m.Spec, Y: 1024 / m.Scale, X: 1024 / m.Scale, Batch: 1,
		Text: slices.Repeat([]int{m.Text}, m.Entries), Evaluations: m.Steps,
	}
	p := plan.OneRank()
	p.Pipe, p.Patches = parts, parts
	out := map[string]func() ([]float64, [2]float64){}
	for _, name := range []string{"H100", "A100-80", "L40", "cpu"} {
		machine, err := hardware.NewMachine(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Device = machine.Device
		o := NewPartition(w, p)
		out[name] = o.blockSeconds
	}
	even := out["H100"]
	scaled := func(f func(b int) float64) func() ([]float64, [2]float64) {
		return func() ([]float64, [2]float64) {
			costs, ends := even()
			for b := range costs {
				costs[b] *= f(b)
			}
			return costs, ends
		}
	}
	n := len(m.Spec.Blocks)
	out["later blocks up to four times dearer"] = scaled(func(b int) float64 { return 1 + 3*float64(b)/float64(n-1) })
	out["random from a half to one and a half"] = scaled(func(b int) float64 {
		return 0.5 +
			rand.New(rand.NewPCG(7, uint64(b))).Float64()
	})
	out["two dear blocks"] = scaled(func(b int) float64 {
		if b == n/3 || b == n-2 {
			return 4
		}
		return 1
	})
	return out
}

// TestStagesOfPublishedModels checks that with at least four blocks per stage the most expensive stage, embedding and
// head included, costs at most 1.03 of the mean, or that no cut is better (all cuts are tried). Costs are those of
// devices, and uneven ones.
func TestStagesOfPublishedModels(t *testing.T) {
	within, best := 0, 0
	var worse []string
	for _, name := range published.Names() {
		m, err := published.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		n := len(m.Spec.Blocks)
		for parts := 2; parts <= 8 && 4*parts <= n; parts++ {
			given := givenCosts(t, m, parts)
			for _, what := range slices.Sorted(maps.Keys(given)) {
				costs, ends := given[what]()
				cut := func() []dit.Range { return plan.Cut(m.Spec, costs, ends, slices.Repeat([]float64{1}, parts)) }
				lanes := cut()
				if !tiled(lanes, n) {
					t.Fatalf("%s on %d stages, %s: %v", name, parts, what, lanes)
				}
				if again := cut(); !slices.Equal(again, lanes) {
					t.Fatalf("%s on %d stages, %s: cut as %v, then as %v", name, parts, what, lanes, again)
				}
				sums := stageSums(lanes, costs, ends, parts)
				mean := 0.0
				for _, s := range sums {
					mean += s / float64(parts)
				}
				most := slices.Max(sums)
				if most <= 1.03*mean {
					within++
					continue
				}
				where := fmt.Sprintf("%s on %d stages, %s: the dearest is %.3f of the mean", name, parts, what, most/mean)
				if least := leastStage(m.Spec, costs, ends, parts); most > least*(1+1e-9) {
					t.Errorf("%s, %.3f is possible", where, least/mean)
				}
				best++
				worse = append(worse, where)
			}
		}
	}
	t.Logf("%d cuts within 1.03 of the mean; %d more are the best possible:", within, best)
	for _, w := range worse {
		t.Log(w)
	}
}

// TestFoldedStagesMirror checks, for every number of blocks and stages, that a stage of a skip-connected model owns
// blocks and their mirror images, so that a skip output is made on the stage that consumes it.
func TestFoldedStagesMirror(t *testing.T) {
	for n := 3; n <= 41; n++ {
		c, ok := hunyuan.Family().Tiny.(hunyuan.Config)
		if !ok {
			t.Fatalf("the small HunyuanDiT is a %T", hunyuan.Family().Tiny)
		}
		c.Depth = n
		d, err := c.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		spec := &d.Spec
		for parts := 1; parts <= min(8, plan.MaxStages(spec)); parts++ {
			p := plan.OneRank()
			p.Pipe = parts
			o := NewPartition(Workload{Spec: spec, Y: 16, X: 16, Batch: 1, Text: []int{333}, Evaluations: 3}, p)
			r := o.Lanes
			if !tiled(r, n) || len(r) != 2*parts-1 {
				t.Fatalf("%d blocks on %d stages: %v", n, parts, r)
			}
			for k, lane := range r {
				if mirror := r[len(r)-1-k]; parts > 1 && (mirror.Start != n-lane.End || mirror.End != n-lane.Start) {
					t.Fatalf("%d blocks on %d stages: lane %d is %v, its mirror %v", n, parts, k, r[k], r[len(r)-1-k])
				}
			}
			for b, blk := range spec.Blocks {
				if blk.Skip < 0 {
					continue
				}
				made, taken := -1, -1
				for k, l := range r {
					if l.Has(blk.Skip) {
						made = o.Stage(k)
					}
					if l.Has(b) {
						taken = o.Stage(k)
					}
				}
				if made < 0 || made != taken {
					t.Fatalf("%d blocks on %d stages: block %d takes on stage %d what block %d makes on stage %d", n, parts, b,
						taken, blk.Skip, made)
				}
			}
		}
	}
}

// TestStagesFollowTheDevice checks that another ratio of rates gives other stages, and the same ratio the same ones.
func TestStagesFollowTheDevice(t *testing.T) {
	m, err := hardware.NewMachine("L40")
	if err != nil {
		t.Fatal(err)
	}
	medium, err := sd3.Config{ // SD3.5 medium: blocks at the front attend twice
		Hidden: 1536, Blocks: 24, Channels: 16, PatchSize: 2, PosSide: 384, ContextDim: 4096, PooledDim: 2048,
		MLPHidden: 6144, QKNorm: true, Dual: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	}.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	p := plan.Plan{Data: 1, CFG: 1, Pipe: 3, Ring: 1, Ulysses: 1, Tensor: 1, Patches: 3, Warmup: 1, Overlap: true}
	w := Workload{Spec: &medium.Spec, Y: 128, X: 128, Batch: 1, Text: []int{154}, Evaluations: 20, Device: m.Device}
	first := NewPartition(w, p).Lanes
	if again := NewPartition(w, p).Lanes; !slices.Equal(first, again) {
		t.Errorf("cut as %v, then as %v", first, again)
	}
	w.Device.Attention /= 8
	if slow := NewPartition(w, p).Lanes; slices.Equal(first, slow) {
		t.Errorf("with attention eight times slower the stages are still %v", slow)
	}
}

// TestEndsHaveTheirCosts checks what embedding and head of PixArt cost where multiply-adds alone count: 4096 tokens of
// 2 x 2 latents, from 4 channels to 1152 values and back to 8 channels, for both entries.
func TestEndsHaveTheirCosts(t *testing.T) {
	s := searchFor(t, "pixart-alpha", 1024, 20, "2xL40-pcie")
	p, err := plan.Parse("pipe=2,patches=3")
	if err != nil {
		t.Fatal(err)
	}
	_, ends := NewPartition(s.Workload, p).blockSeconds()
	const product = 2. * 2 * 4096 * 4 * 1152
	if want := [2]float64{product * 4, product * 8}; ends != want {
		t.Errorf("embedding and head cost %v, want %v", ends, want)
	}
}
