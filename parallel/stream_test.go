package parallel

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// streamPlans returns plans that bring blocks from host memory.
func streamPlans() []string {
	return []string{
		"stream=on", "stream=2", "stream=3", "stream=4,overlap=off", "ulysses=2,stream=on", "ring=3,stream=3",
		"cfg=2,stream=2", "data=2,stream=on", "tensor=2,stream=3", "tensor=2,form=scatter,ulysses=2,stream=on",
		"pipe=2,patches=3,warmup=1,stream=on", "pipe=3,patches=2,warmup=1,stream=1", "pipe=2,ulysses=2,patches=2,stream=2",
		"ulysses=2,shard=on,stream=on", "cfg=2,ring=2,shard=on,stream=2", "tensor=2,ulysses=2,shard=on,stream=3",
		"ulysses=2,shard=on,stream=3,overlap=off", "pipe=2,patches=2,warmup=1,kv=fp8,stream=on",
	}
}

// withoutStream returns a plan whose picture is that of a plan with stream: the same stages, each with its own weights.
func withoutStream(t *testing.T, text string) string {
	t.Helper()
	p := planOf(t, text)
	if p.Stream = 0; p.Pipe > 1 {
		p.Shard = true
	}
	if p == plan.OneRank() {
		return ""
	}
	return p.String()
}

// TestStreamedPlansEqualWholeWeights checks that blocks from host memory give the bits of weights that stay on the
// device, on every kind of plan and of every family, and that a second run gives the bits of the first.
func TestStreamedPlansEqualWholeWeights(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for i, f := range families(t) {
		e, h := newEngine(t), &holder{}
		r := strictRequest(t, h, f.name, 2, f.y, f.x, 2)
		plans := everyNth(streamPlans(), i, 6) // each on two families
		if testing.Short() {
			plans = everyNth(streamPlans(), i, 18)
		}
		for _, text := range plans {
			t.Run(f.name+"/"+text, func(t *testing.T) {
				whole, streamed := *r, *r
				whole.Plan, streamed.Plan = withoutStream(t, text), text
				want, err := e.Sample(context.Background(), &whole, nil)
				if err != nil {
					t.Fatal(err)
				}
				h.opened = 0
				for range 2 { // the second run finds the leftovers of the first
					got, err := e.Sample(context.Background(), &streamed, nil)
					if err != nil {
						t.Fatal(err)
					}
					if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
						t.Fatalf("element %d is %v, with whole weights %v: want equal bits", at, got.Latent.Data[at],
							want.Latent.Data[at])
					}
					for rank, sent := range got.Stats.Traffic {
						if sent[plan.AxisStream].Calls == 0 {
							t.Errorf("rank %d has read nothing from host memory", rank)
						}
					}
				}
				if h.opened == 0 {
					t.Error("no unit was ever brought")
				}
			})
		}
	}
}

// TestAdaptersGoWithStreams checks that LoRA adapters stay on the device and work beside blocks from host memory.
func TestAdaptersGoWithStreams(t *testing.T) {
	e := newEngine(t)
	r := tinyRequest(t, "flux", 1, 9, 8, 2)
	plain, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	width, load := r.Model.Spec.Width, describe(t, "flux").Load
	stored := func(name string, shape ...int) weights.Stored {
		return weights.Floats(golden.Input(name, shape[0]*shape[1]), shape...)
	}
	r.Model.Key = "tiny-flux+lora"
	r.Model.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		m, err := load(ops, held)
		if err != nil {
			return nil, err
		}
		return models.Adapt(ops, &dit.Shared{Model: m, Free: m.Close}, []weights.LowRank{
			{Name: "double_blocks.1.img_attn.qkv", Down: stored("down", 3, width), Up: stored("up", 3*width, 3), Scale: 0.05},
			{
				Name: "single_blocks.0.linear2", Down: stored("down2", 2, 5*width),
				Up: stored("up2", width, 2), Scale: 0.05,
			},
		})
	})
	var want []float32
	for _, text := range []string{"", "stream=on", "stream=4", "tensor=2", "tensor=2,stream=on"} {
		r.Plan = text
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if planOf(t, text).Stream == 0 {
			want = got.Latent.Data
		}
		if at := firstDifference(got.Latent.Data, want); at >= 0 {
			t.Errorf("%s: element %d is %v, with whole weights %v: want equal bits", text, at, got.Latent.Data[at], want[at])
		}
		if relative(got.Latent.Data, plain.Latent.Data) < 1e-3 {
			t.Errorf("%s: the additions change nothing", text)
		}
	}
}

// TestStreamFollowsTheBudget checks how many blocks come from host memory: with stream=on and no limit all, with one as
// few as fit; with stream=auto none where all fit; and that what is then resident is within the budget.
func TestStreamFollowsTheBudget(t *testing.T) {
	r := tinyRequest(t, "flux", 1, 9, 8, 1)
	r.Model.WeightBytes = 4 * r.Model.Spec.Params
	one, err := newEngine(t).Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := r.Model.WeightBytes + one.Stats.PeakBytes
	for _, c := range []struct {
		plan   string
		budget int64
		want   string
	}{
		{"stream=on", 0, "stream=7"},
		{"stream=auto", 0, "one rank"},
		{"stream=auto", whole * 5 / 4, "one rank"},
		{"stream=on", whole * 5 / 4, "stream=2"},
		{"stream=auto", whole * 21 / 20, "stream=4"},
		{"stream=auto", whole * 4 / 5, "stream=6"},
	} {
		t.Run(fmt.Sprint(c.plan, " of ", c.budget), func(t *testing.T) {
			e, err := NewPool(Config{NewOps: testOps, MemoryBytes: c.budget})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			r := *r
			r.Plan = c.plan
			res, err := e.Sample(context.Background(), &r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.Stats.Plan != c.want {
				t.Errorf("ran %s, want %s", res.Stats.Plan, c.want)
			}
			if at := firstDifference(res.Latent.Data, one.Latent.Data); at >= 0 {
				t.Errorf("element %d differs from the run with whole weights", at)
			}
		})
	}
}

// TestStreamsByDefault checks Config.Streams: where a plan says nothing of it, blocks come from host memory if the
// model does not fit otherwise. A refusal says what stays, what comes from host memory and what is allowed.
func TestStreamsByDefault(t *testing.T) {
	r := tinyRequest(t, "flux", 1, 9, 8, 1)
	r.Model.WeightBytes = 4 * r.Model.Spec.Params
	one, err := newEngine(t).Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := r.Model.WeightBytes + one.Stats.PeakBytes
	for _, c := range []struct {
		plan    string
		budget  int64
		want    string
		refused string
	}{
		{"", 0, "one rank", ""},
		{"", whole * 5 / 4, "one rank", ""},
		{"", whole * 4 / 5, "stream=6", ""},
		{"ulysses=2", whole * 7 / 8, "ulysses=2,stream=", ""},
		{"ranks=2", whole * 4 / 5, "stream=", ""},
		{"stream=off", r.Model.WeightBytes - 1, "", "the weights of tiny-flux take "},
		{"", r.Model.WeightBytes / 8, "", "that come from host memory, "},
	} {
		t.Run(fmt.Sprint(c.plan, " of ", c.budget), func(t *testing.T) {
			e, err := NewPool(Config{NewOps: testOps, MemoryBytes: c.budget, Streams: true})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			r := *r
			r.Plan = c.plan
			res, err := e.Sample(context.Background(), &r, nil)
			if c.refused != "" {
				if !fault.Is(err, fault.OutOfMemory) || !strings.Contains(err.Error(), c.refused) ||
					!strings.Contains(err.Error(), "MB are allowed") {
					t.Errorf("got %v, want out_of_memory with %q", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(res.Stats.Plan, c.want) {
				t.Errorf("ran %s, want %s", res.Stats.Plan, c.want)
			}
			if rel := relative(res.Latent.Data, one.Latent.Data); !(rel <= 1e-5) {
				t.Errorf("differs from one rank with whole weights by %.3g, bound 1e-5", rel)
			}
		})
	}
}

// TestTwoBlocksMustFit checks that a device, or processors, with less memory than what stays and two blocks take is
// refused, with what is needed and what there is, although the host has memory for everything.
func TestTwoBlocksMustFit(t *testing.T) {
	r := tinyRequest(t, "flux", 1, 9, 8, 1)
	r.Model.WeightBytes = 4 * r.Model.Spec.Params
	little := r.Model.WeightBytes / 4
	for what, c := range map[string]Config{
		"needs 3.40 MB a rank (weights 3.14 MB, kept keys and values 0.00 MB, activations, exchanges and workspaces 0.26 " +
			"MB), 1.68 MB are free on cpu; blocks that come from host memory take 6.25 MB there": {
			DeviceOf: func(int) string { return "d0" }, DeviceMemory: little, MemoryBytes: 2 * r.Model.WeightBytes,
		},
		"activations and buffers beside them 2 MB, without 5 MB that come from host memory, 1 MB are allowed": {
			MemoryBytes: little,
		},
	} {
		c.NewOps, c.Streams = testOps, true
		e, err := NewPool(c)
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.Sample(context.Background(), r, nil)
		if !fault.Is(err, fault.OutOfMemory) || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want out_of_memory with %q", err, what)
		}
		e.Close()
	}
}

// TestModelsInTurn runs two models one after the other in memory that holds one of them, or only a part of one: bits
// stay the same, and what is resident stays within the budget.
func TestModelsInTurn(t *testing.T) {
	list := []*request.Request{tinyRequest(t, "flux", 1, 9, 8, 1), tinyRequest(t, "hunyuandit", 1, 9, 8, 1)}
	var want [2]*request.Result
	budget := int64(0)
	for i, r := range list {
		r.Model.WeightBytes = 4 * r.Model.Spec.Params
		var err error
		if want[i], err = newEngine(t).Sample(context.Background(), r, nil); err != nil {
			t.Fatal(err)
		}
		budget = max(budget, r.Model.WeightBytes+want[i].Stats.PeakBytes)
	}
	for _, room := range []int64{budget * 5 / 4, budget * 4 / 5} {
		e, err := NewPool(Config{NewOps: testOps, MemoryBytes: room, Streams: true})
		if err != nil {
			t.Fatal(err)
		}
		streams := false
		for turn, i := range []int{0, 1, 0, 1, 1, 0} {
			got, err := e.Sample(context.Background(), list[i], nil)
			if err != nil {
				t.Fatalf("turn %d in %d bytes: %v", turn, room, err)
			}
			if at := firstDifference(got.Latent.Data, want[i].Latent.Data); at >= 0 {
				t.Errorf("turn %d in %d bytes: element %d differs from the run with whole weights", turn, room, at)
			}
			held := int64(0)
			for _, p := range e.Resident() {
				held += p.Bytes
			}
			if held > room {
				t.Errorf("turn %d: %d bytes are resident, %d are allowed", turn, held, room)
			}
			streams = streams || got.Stats.Plan != "one rank"
		}
		if streams != (room < budget) {
			t.Errorf("in %d bytes of %d: blocks came from host memory: %v", room, budget, streams)
		}
		e.Close()
	}
}

// scarce is Ops whose allocations fail from the given one on.
type scarce struct {
	engine.Ops
	left *atomic.Int64
}

func (s *scarce) Alloc(bytes int) (engine.Buf, error) {
	if s.left.Add(-1) < 0 {
		return engine.Buf{}, fmt.Errorf("%d bytes: %w", bytes, engine.ErrOutOfMemory)
	}
	return s.Ops.Alloc(bytes)
}

func (s *scarce) Close() error {
	rank.CloseOps(s.Ops)
	return nil
}

// TestStreamsRunOutOfMemory lets memory run out at every allocation of a request that brings blocks, that of its slots
// among them: the request fails with out_of_memory, and the next one gives the right bits.
func TestStreamsRunOutOfMemory(t *testing.T) {
	r := tinyRequest(t, "flux", 1, 9, 8, 1)
	r.Plan = "ulysses=2,stream=4"
	plenty, left := int64(1<<30), atomic.Int64{}
	cfg := Config{NewOps: func(at, ranks int) (engine.Ops, error) {
		ops, err := testOps(at, ranks)
		return &scarce{ops, &left}, err
	}}
	left.Store(plenty)
	e, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	want, err := e.Sample(context.Background(), r, nil)
	if e.Close(); err != nil {
		t.Fatal(err)
	}
	all := plenty - left.Load()
	for n := range all {
		left.Store(plenty)
		e, err := NewPool(cfg)
		if err != nil {
			t.Fatal(err)
		}
		e.keep(t, "kept", 1, func() { left.Store(n) }) // the second attempt runs out at the same place
		left.Store(n)
		if _, err := e.Sample(context.Background(), r, nil); !fault.Is(err, fault.OutOfMemory) {
			t.Errorf("without allocation %d of %d: got %v, want out_of_memory", n, all, err)
		}
		left.Store(plenty)
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Errorf("after allocation %d of %d failed: %v", n, all, err)
		} else if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
			t.Errorf("after allocation %d of %d failed: element %d differs", n, all, at)
		}
		e.Close()
	}
}

// TestHostMemoryBoundsStreams checks that a job on a device that is too small is refused if the blocks that it would
// bring take more host memory than the process may, with both numbers, instead of making the machine swap.
func TestHostMemoryBoundsStreams(t *testing.T) {
	r := tinyRequest(t, "flux", 1, 9, 8, 1)
	r.Model.WeightBytes = 4 * r.Model.Spec.Params
	for host, want := range map[int64]string{
		0: "", r.Model.WeightBytes: "", 50_000: "0.05 MB are allowed (serve --pack-cache DIR keeps them in files)",
	} {
		e, err := NewPool(Config{
			NewOps: testOps, DeviceOf: func(int) string { return "d0" }, Streams: true, HostMemory: host,
			MemoryBytes: r.Model.WeightBytes, DeviceMemory: r.Model.WeightBytes,
		})
		if err != nil {
			t.Fatal(err)
		}
		res, err := e.Sample(context.Background(), r, nil)
		switch {
		case want == "" && err != nil:
			t.Errorf("with %d bytes of host memory: %v", host, err)
		case want == "" && !strings.HasPrefix(res.Stats.Plan, "stream="):
			t.Errorf("with %d bytes of host memory: ran %s, want blocks from there", host, res.Stats.Plan)
		case want != "" && (!fault.Is(err, fault.OutOfMemory) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "blocks that come from host memory take ")):
			t.Errorf("with %d bytes of host memory: %v, want out_of_memory with %q", host, err, want)
		}
		e.Close()
	}
}

// TestOtherSizesKeepBlocks runs plans that bring different numbers of blocks, as requests of different sizes do, in
// memory that holds the weights once. Blocks that stay for both are not read again, but those that were not there.
// There is never more in memory than before or behind, bits are those of pools of their own, and nothing is left when
// everything is dropped.
func TestOtherSizesKeepBlocks(t *testing.T) {
	set, meta, err := tiny.Checkpoint("flux")
	if err != nil {
		t.Fatal(err)
	}
	d, read := watched(t, set, meta)
	blocks := len(d.Spec.Blocks)
	for _, plans := range [][]string{
		{"", "stream=2", "stream=4"},
		{"stream=4", "stream=2", ""},
		{"stream=6", "", "stream=3"},
		{"stream=2", "stream=3"},
		{"tensor=2", "tensor=2,stream=4"},
	} {
		r := tinyRequest(t, "flux", 1, 9, 8, 1)
		r.Model.WeightBytes, r.Model.Weights = 4*r.Model.Spec.Params, request.LoadFunc(d.Load)
		budget, home := r.Model.WeightBytes*int64(5+6*planOf(t, plans[0]).Tensor)/10, (*weighing)(nil)
		e, err := NewPool(Config{MemoryBytes: budget, NewOps: func(rank, ranks int) (engine.Ops, error) {
			ops, err := testOps(rank, ranks)
			if home != nil || err != nil {
				return ops, err
			}
			home = &weighing{Ops: ops} // which loads
			return home, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		resident := map[string]bool{} // by rank and block, of the run before
		for i, text := range plans {
			clear(read)
			e.whole.home.Evict("activations")
			before := home.now
			home.peak = before
			if _, err := e.Load(context.Background(), r.Model, text); err != nil {
				t.Fatalf("%v, %s: %v", plans, text, err)
			}
			if n := len(e.Resident()); n != planOf(t, text).Tensor {
				t.Errorf("%v, %s: %d placements are resident, want the one of each rank", plans, text, n)
			}
			want, now := map[int]bool{}, map[string]bool{}
			for rank := range planOf(t, text).Ranks() {
				held := planOf(t, text).Held(nil, plan.Mesh{Plan: planOf(t, text)}.At(rank))
				for b, brought := range held.Streamed(blocks) {
					if at := fmt.Sprint(rank, " ", b); !brought {
						now[at] = true
						want[b] = want[b] || !resident[at]
					}
				}
			}
			resident = now
			for _, name := range set.Names() {
				b := blockOf(set, name)
				want := b < 0 && i == 0 || want[b]
				if w, _ := set.Get(name); len(w.Shape) == 2 && (read[name] > 0) != want {
					t.Errorf("%v, run %d: %d elements of %s were read, want some: %v", plans, i, read[name], name, want)
				}
			}
			if most := max(before, home.now); home.peak > most+1024 { // what is packed to learn a layout
				t.Errorf("%v, run %d: weights took %d bytes, before and after at most %d", plans, i, home.peak, most)
			}
			of := *r
			of.Plan = text
			got, err := e.Sample(context.Background(), &of, nil)
			if err != nil {
				t.Fatal(err)
			}
			alone := *tinyRequest(t, "flux", 1, 9, 8, 1)
			alone.Plan = text
			fresh, err := newEngine(t).Sample(context.Background(), &alone, nil)
			if err != nil {
				t.Fatal(err)
			}
			if at := firstDifference(got.Latent.Data, fresh.Latent.Data); at >= 0 {
				t.Errorf("%v, run %d, %s: element %d differs from a pool that loads this alone", plans, i, text, at)
			}
		}
		if e.Evict(""); home.now != 0 {
			t.Errorf("%v: %d bytes are left", plans, home.now)
		}
		e.Close()
	}
}

// watched opens a model, and counts the elements that are read of each of its matrices.
func watched(t *testing.T, set *weights.Set, meta map[string]string) (d *family.Diffusion, read map[string]int64) {
	t.Helper()
	var mu sync.Mutex
	read = map[string]int64{}
	d, err := models.OpenDiffusion(set.Watched(func(name string, lo, hi int) {
		mu.Lock()
		defer mu.Unlock()
		if w, _ := set.Get(name); len(w.Shape) == 2 {
			read[name] += int64(hi - lo)
		}
	}), meta)
	if err != nil {
		t.Fatal(err)
	}
	return d, read
}

// blockOf returns the number of the block of FLUX that a tensor belongs to, -1: none.
func blockOf(set *weights.Set, name string) int {
	var n int
	if _, err := fmt.Sscanf(name, "double_blocks.%d.", &n); err == nil {
		return n
	}
	if _, err := fmt.Sscanf(name, "single_blocks.%d.", &n); err == nil {
		return set.Count("double_blocks") + n
	}
	return -1
}
