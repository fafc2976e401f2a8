//go:build cgo && fakegpu

package cuda

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
)

// TestReserve checks that, after a recording pass and Reserve, not even the first step allocates memory. Every kind of
// call has a stream of its own, so that none can use a larger scratch buffer of another. Operands are made on yet
// another stream.
func TestReserve(t *testing.T) {
	for name, prepare := range map[string]func(m *bench) func(o engine.Ops){
		"Linear": func(m *bench) func(o engine.Ops) {
			x, y := m.normal(engine.BF16, 1, 300, 64), m.normal(engine.BF16, 1, 300, 64)
			w := &engine.Weight{Base: m.weight(engine.BF16, 64, 64)}
			w.Adapters = []engine.Adapter{
				{Down: m.weight(engine.BF16, 12, 64), Up: m.weight(engine.BF16, 64, 12), Scale: 1},
				{Down: m.weight(engine.F32, 3, 64), Up: m.weight(engine.F32, 64, 3), Scale: 1},
			}
			return func(o engine.Ops) { o.Linear(y, x, w, engine.Epilogue{}) }
		},
		"Linear of int8": func(m *bench) func(o engine.Ops) {
			x, y := m.normal(engine.BF16, 1, 300, 64), m.normal(engine.BF16, 1, 300, 64)
			p, _ := m.weight8(64, 64, 16)
			w := &engine.Weight{Base: p}
			w.Adapters = []engine.Adapter{
				{Down: m.weight(engine.BF16, 12, 64), Up: m.weight(engine.BF16, 64, 12), Scale: 1},
			}
			return func(o engine.Ops) { o.Linear(y, x, w, engine.Epilogue{Residual: y}) }
		},
		"Linear of blocks": func(m *bench) func(o engine.Ops) {
			x, y := m.normal(engine.BF16, 1, 300, 256), m.normal(engine.BF16, 1, 300, 600)
			w := &engine.Weight{Base: m.keep(m.randomBlocks(gguf.Q4K, 600, 256, true))}
			w.Adapters = []engine.Adapter{
				{Down: m.weight(engine.BF16, 12, 256), Up: m.weight(engine.BF16, 600, 12), Scale: 1},
			}
			return func(o engine.Ops) { o.Linear(y, x, w, engine.Epilogue{Residual: y}) }
		},
		"Conv2D": func(m *bench) func(o engine.Ops) {
			x, y := m.normal(engine.BF16, 2, 9, 8, 16), m.normal(engine.BF16, 2, 9, 8, 24)
			w := &engine.Weight{Base: m.weight(engine.BF16, 24, 9*16)}
			w.Adapters = []engine.Adapter{{Down: m.weight(engine.BF16, 4, 9*16), Up: m.weight(engine.BF16, 24, 4), Scale: 1}}
			args := engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Top: 1, Bottom: 1, Left: 1, Right: 1}
			return func(o engine.Ops) { o.Conv2D(y, x, w, args) }
		},
		"Attention": func(m *bench) func(o engine.Ops) {
			q, k, y := m.normal(engine.BF16, 2, 37, 1, 512), m.normal(engine.BF16, 2, 50, 1, 512),
				m.normal(engine.BF16, 2, 37, 1, 512)
			return func(o engine.Ops) { o.Attention(y, q, k, k, engine.AttentionArgs{}) }
		},
		"GroupNorm": func(m *bench) func(o engine.Ops) {
			x := m.normal(engine.BF16, 2, 40, 40, 32)
			stats := engine.NewTensor(m.normal(engine.F32, 2*2*8*2).Buf, engine.F64, 2, 8, 2)
			w := m.normal(engine.F32, 32)
			return func(o engine.Ops) {
				o.GroupNormStats(stats, x, 8)
				o.GroupNormApply(x, x, stats, w, w, 40*40*4, 1e-6, engine.SiLU)
			}
		},
		"Gather": func(m *bench) func(o engine.Ops) {
			table, y, ids := m.normal(engine.BF16, 50, 16), m.normal(engine.BF16, 300, 16), make([]int32, 300)
			return func(o engine.Ops) { o.Gather(y, table, ids) }
		},
		"transfers": func(m *bench) func(o engine.Ops) {
			x, src, first, second := m.normal(engine.BF16, 5000), make([]float32, 5000), make([]float32, 5000),
				make([]float32, 5000)
			return func(o engine.Ops) {
				o.Upload(x, src)
				a, b := o.Download(first, x), o.Download(second, x)
				for _, p := range []engine.Pending{a, b} {
					if err := p.Wait(); err != nil {
						m.t.Fatal(err)
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dev := openDevice(t)
			loader, o := newOps(t, dev), newOps(t, dev)
			m := &bench{t: t, ops: loader, rng: newRand()}
			step := prepare(m)
			calls := engine.NewRecorder()
			step(calls)
			if err := loader.Sync(); err != nil {
				t.Fatal(err)
			}
			if err := o.Reserve(calls); err != nil {
				t.Fatal(err)
			}
			before := dev.Counts().Allocations
			step(o)
			if err := o.Sync(); err != nil {
				t.Fatal(err)
			}
			if n := dev.Counts().Allocations - before; n != 0 {
				t.Errorf("the first step took memory %d times, want 0", n)
			}
			for _, b := range m.buf {
				loader.Free(b)
			}
		})
	}
}

// TestScratchOfFewRows checks that products with few rows of x reserve no memory for widened weights, unless fixed.
func TestScratchOfFewRows(t *testing.T) {
	o := openOps(t)
	calls := engine.NewRecorder()
	few := engine.Product{Batch: 2, Rows: fewRows / 2, N: 600, K: 256, Weight: engine.BF16, Blocks: true}
	calls.Products[few] = true
	for _, c := range []struct {
		fixed bool
		want  int64
	}{{false, 0}, {true, 2 * 600 * 256}} {
		o.Fix(c.fixed)
		if got := o.Scratch(calls); got != c.want {
			t.Errorf("fixed %t: %d bytes of scratch memory, want %d", c.fixed, got, c.want)
		}
	}
}

// TestReserveRefuses checks that Reserve refuses what does not fit with an error that names the device and the numbers,
// and that the stream stays usable.
func TestReserveRefuses(t *testing.T) {
	t.Setenv("FAKEGPU_MEMORY", "10000000")
	o := openOps(t)
	if o.dev.Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake device has a settable memory")
	}
	calls := engine.NewRecorder()
	calls.Products[engine.Product{Batch: 1, Rows: 1 << 16, N: 64, K: 64, Ranks: 64}] = true
	err := o.Reserve(calls)
	if err == nil || err.Error() != "cuda:0: take 16 MB of scratch memory: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY: "+
		"fake device: out of memory (2)" {
		t.Errorf("got %v", err)
	}
	x := vector(t, o, 64)
	o.Fill(x, 3)
	wantAll(t, o, x, 3)
	o.Free(x.Buf)
}

// TestLocation checks that all streams of a device report its name and how much of its memory is free for all.
func TestLocation(t *testing.T) {
	t.Setenv("FAKEGPU_MEMORY", "10000000")
	dev := openDevice(t)
	a, b := newOps(t, dev), newOps(t, dev)
	if a.Location() != "cuda:0" || b.Location() != a.Location() {
		t.Errorf("locations %q and %q, want cuda:0", a.Location(), b.Location())
	}
	before, total, err := a.DeviceMemory()
	if err != nil || before <= 0 || before > total {
		t.Fatalf("memory %d of %d, %v", before, total, err)
	}
	x := vector(t, a, 1_000_000)
	free, again, err := b.DeviceMemory()
	if err != nil || again != total || free > before-4_000_000 {
		t.Errorf("memory %d of %d, %v: 4 MB of %d were taken", free, again, err, before)
	}
	if dev.Name == "Fake GPU" && (total != 10_000_000 || free != before-4_000_000) {
		t.Errorf("memory %d of %d, want %d of 10000000", free, total, before-4_000_000)
	}
	a.Free(x.Buf)
}
