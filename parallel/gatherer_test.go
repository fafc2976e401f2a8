package parallel

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"patchbay/engine"
	late "patchbay/engine/deferred"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/weights"
	"patchbay/parallel/comm"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// strict is a Model with weights that are brought, whose slots are filled with NaN while their units are not in use, so
// that a read too late or too early shows in the result.
type strict struct {
	dit.Model
	shards *dit.Shards
}

func (s *strict) Shards() *dit.Shards { return s.shards }

// strictly wraps a model and calls opened for each unit that was brought.
func strictly(m dit.Model, opened func(unit int)) *strict {
	shards := *m.Shards()
	s, views, sharing := &strict{Model: m, shards: &shards}, shards.View, [2]int{}
	for i := range shards.Units {
		if slot := shards.Units[i].Slot; slot >= 0 {
			sharing[slot]++
		}
	}
	shards.View = func(slots [2]engine.Buf) (dit.Model, func(unit int, yes bool)) {
		view, open := views(slots)
		return view, func(unit int, yes bool) {
			open(unit, yes)
			u := &shards.Units[unit]
			if yes {
				opened(unit)
			} else if u.Slot >= 0 && sharing[u.Slot] > 1 { // else it stays there for the next use
				late.Poison(slots[u.Slot].Host[:u.Bytes()])
			}
		}
	}
	return s
}

// holder records what tests check about the models that a request loads.
type holder struct {
	mu     sync.Mutex
	opened int
	models map[string]dit.Model // by plan.HeldKey
	peaks  map[string]int64     // peak bytes of weights
}

// weighing is an Ops that counts the memory of weights: what Alloc and Pack take and Free returns.
type weighing struct {
	engine.Ops
	now, peak int64
}

func (c *weighing) add(n int) { c.now += int64(n); c.peak = max(c.peak, c.now) }

func (c *weighing) Alloc(n int) (engine.Buf, error) { c.add(n); return c.Ops.Alloc(n) }

func (c *weighing) Free(b engine.Buf) { c.add(-len(b.Host)); c.Ops.Free(b) }

func (c *weighing) Pack(m engine.Matrix, ch int) (*engine.Packed, error) {
	p, err := c.Ops.Pack(m, ch)
	if err == nil {
		c.add(p.Bytes)
	}
	return p, err
}

// strictRequest is tinyRequest with private copies of the parts for every rank.
func strictRequest(t *testing.T, h *holder, family string, b, y, x, steps int) *request.Request {
	r := tinyRequest(t, family, b, y, x, steps)
	load := r.Model.Weights.Load
	h.models, h.peaks = map[string]dit.Model{}, map[string]int64{}
	r.Model.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		count := &weighing{Ops: ops}
		m, err := load(count, held)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.peaks[plan.HeldKey("", held)] = count.peak
		if err != nil || m.Shards() == nil {
			return m, err
		}
		s := strictly(m, func(int) { h.mu.Lock(); h.opened++; h.mu.Unlock() })
		h.models[plan.HeldKey("", held)] = s
		return s, nil
	})
	return r
}

// TestShardedPlansEqualWholeWeights checks that sharded weights give the bits of whole weights on every plan that
// accepts them, and that a second run gives the bits of the first.
func TestShardedPlansEqualWholeWeights(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for i, f := range families(t) {
		e, h := newEngine(t), &holder{}
		r := strictRequest(t, h, f.name, 2, f.y, f.x, 2)
		plans := everyNth([]string{
			"ulysses=2", "ulysses=3", "ring=2", "cfg=2", "cfg=3", "data=2", "ring=2,ulysses=2", "data=2,cfg=2,ulysses=2",
			"tensor=2,ulysses=2", "tensor=2,form=scatter,ring=3",
		}, i, 12) // each on one family
		for _, plan := range plans {
			t.Run(f.name+"/"+plan, func(t *testing.T) {
				whole, parts := *r, *r
				whole.Plan, parts.Plan = plan, plan+",shard=on"
				want, err := e.Sample(context.Background(), &whole, nil)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // the second run finds the leftovers of the first
					got, err := e.Sample(context.Background(), &parts, nil)
					if err != nil {
						t.Fatal(err)
					}
					if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
						t.Fatalf("element %d is %v, with whole weights %v: want equal bits", at, got.Latent.Data[at],
							want.Latent.Data[at])
					}
				}
			})
		}
		if h.opened == 0 && len(plans) > 0 {
			t.Error("no unit was ever gathered")
		}
	}
}

// TestAdaptersGoWithParts checks that LoRA adapters are whole on every rank and work with sharded weights.
func TestAdaptersGoWithParts(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	e := newEngine(t)
	r := tinyRequest(t, "flux", 1, 9, 8, 2)
	plain, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	width, load := r.Model.Spec.Width, describe(t, "flux").Load
	stored := func(name string, shape ...int) weights.Stored {
		n := shape[0] * shape[1]
		s := weights.Stored{DType: engine.F32, Shape: shape, Data: make([]byte, 4*n)}
		engine.Narrow(s.Data, golden.Input(name, n), engine.F32)
		return s
	}
	r.Model.Key = "tiny-flux+lora"
	r.Model.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		m, err := load(ops, held)
		if err != nil {
			return nil, err
		}
		return models.Adapt(ops, m, []weights.LowRank{
			{Name: "double_blocks.1.img_attn.qkv", Down: stored("down", 3, width), Up: stored("up", 3*width, 3), Scale: 0.05},
			{
				Name: "single_blocks.0.linear2", Down: stored("down2", 2, 5*width),
				Up: stored("up2", width, 2), Scale: 0.05,
			},
		})
	})
	for _, plan := range []string{"ulysses=2", "tensor=2,ring=2"} {
		whole, parts := *r, *r
		whole.Plan, parts.Plan = plan, plan+",shard=on"
		want, err := e.Sample(context.Background(), &whole, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Sample(context.Background(), &parts, nil)
		if err != nil {
			t.Fatal(err)
		}
		if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
			t.Errorf("%s: element %d is %v, with whole weights %v: want equal bits", plan, at, got.Latent.Data[at],
				want.Latent.Data[at])
		}
		if relative(got.Latent.Data, plain.Latent.Data) < 1e-3 {
			t.Errorf("%s: the additions change nothing", plan)
		}
	}
}

// firstDifference returns the first index at which two vectors differ, or -1.
func firstDifference(a, b []float32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

// TestPartsAreWithinTheirBounds checks that the bytes gathered equal the formula on every rank, that a rank's weights
// never take more than 1/P of them all plus two units, loading included, and that the forecast from the config alone
// is close.
func TestPartsAreWithinTheirBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestShardedPlansEqualWholeWeights gathers the same parts")
	}
	for i, f := range families(t) {
		e, h := newEngine(t), &holder{}
		r := strictRequest(t, h, f.name, 2, f.y, f.x, 2)
		w := workloadOf(r)
		if _, err := e.Sample(context.Background(), r, nil); err != nil { // whole weights, for comparison
			t.Fatal(err)
		}
		for _, text := range everyNth([]string{"ulysses=2", "cfg=2,ulysses=2", "ring=7"}, i, 3) {
			p, err := plan.Parse(text + ",shard=on")
			if err != nil {
				t.Fatal(err)
			}
			parts := *r
			parts.Plan = p.String()
			res, err := e.Sample(context.Background(), &parts, nil)
			if err != nil {
				t.Fatal(err)
			}
			units := h.models[plan.HeldKey("", p.Held(nil, plan.Coord{}))].Shards().Units
			total, largest := int64(0), 0
			for _, u := range units {
				total += int64(u.Bytes())
				largest = max(largest, u.Bytes())
			}
			for rank, axes := range res.Stats.Traffic {
				c := plan.Mesh{Plan: p}.At(rank)
				want := comm.Traffic{}
				blocks := dit.Range{End: len(w.Spec.Blocks)}
				for _, b := range plan.Brought(p.Held(nil, c), blocks.End, blocks, w.Evaluations, true) {
					want.Calls++
					want.Bytes += int64(units[b.Unit].Counts[p.Held(nil, c).Part] * (p.Parts() - 1))
				}
				if got := axes[plan.AxisShard]; got.Calls != want.Calls || got.Bytes != want.Bytes {
					t.Errorf("%s %s, rank %d: %d bytes in %d gathers, formula %d in %d", f.name, p, rank, got.Bytes, got.Calls,
						want.Bytes, want.Calls)
				}
				// cutting at pieces may add a panel of the widest matrix, of at most 64 rows
				piece := 64 * 4 * 5 * w.Spec.Width
				peak, bound := h.peaks[plan.HeldKey("", p.Held(nil, c))], total/int64(p.Parts())+int64(2*largest+piece)
				shards := h.models[plan.HeldKey("", p.Held(nil, c))].Shards()
				slots := shards.SlotBytes()
				kept := int64(slots[0] + slots[1])
				for i := range shards.Units {
					kept += int64(shards.Units[i].Mine.Len())
				}
				peak = max(peak, kept)
				if peak > bound {
					t.Errorf("%s %s, rank %d: weights take %d bytes at their peak, want at most 1/%d of %d and two units of %d: %d",
						f.name, p, rank, peak, p.Parts(), total,
						largest, bound)
				}
				predicted := forecast.WeightsByRank(w, p, 4)[rank]
				if off := float64(predicted)/float64(peak) - 1; !near(off, 0, 0.15) {
					t.Errorf("%s %s, rank %d: forecast %d bytes of weights, counted %d: off by %.1f %%, bound 15 %%", f.name, p, rank,
						predicted, peak, 100*off)
				}
				if rank == 0 {
					t.Logf("%s %s: %d of %d bytes of weights (whole: %d), largest unit %d, forecast %d; gathered %d bytes, "+
						"forecast %d", f.name, p, peak, total,
						h.peaks[plan.HeldKey("", dit.Held{})], largest, predicted, axes[plan.AxisShard].Bytes,
						forecast.TrafficByRank(w, p, 4, 4)[rank][plan.AxisShard].Bytes)
				}
			}
		}
	}
}

// TestShardedRunsSurviveFaults checks that a panic or a cancellation during gathers ends the request without a hang,
// and that the next run gives the bits of the first.
func TestShardedRunsSurviveFaults(t *testing.T) {
	var left atomic.Int64
	fault := func() { panic("kernel fault") }
	e := faultyEngine(t, &left, func() { fault() })
	for _, plan := range []string{"ulysses=3,shard=on", "cfg=2,tensor=2,shard=on", "data=2,ring=2,shard=on"} {
		r := tinyRequest(t, "flux", 2, 9, 8, 4)
		r.Plan = plan
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, calls := range []int64{1, 40, 173, 300} {
			ctx, cancel := context.WithCancel(context.Background())
			fault = func() { panic("kernel fault") }
			if i%2 == 1 {
				fault = cancel
			}
			left.Store(calls)
			if _, err := e.Sample(ctx, r, nil); err == nil {
				t.Errorf("%s: a fault at product %d went unnoticed", plan, calls)
			}
			cancel()
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
				t.Errorf("%s: after a fault at product %d element %d differs", plan, calls, at)
			}
		}
		e.Evict("")
	}
}
