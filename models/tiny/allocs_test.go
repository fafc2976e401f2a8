//go:build cgo

package tiny

import (
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cpu"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
)

// blockAllocs is the largest number of Go objects that one block of any family may allocate on the CPU: closures and
// tensor headers of its calls and the task counters of two threads. Tensor data comes from the arena.
const blockAllocs = 160

// TestBlockAllocates checks, with images of 289 and 576 tokens, that a block allocates a small number of Go objects
// that does not grow with the image.
func TestBlockAllocates(t *testing.T) {
	if testing.Short() {
		t.Skip("long: blocks of larger images; TestSteadyCallsAllocateLittle counts for single operations")
	}
	ops, err := cpu.New(cpu.Config{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			m, err := Load(ops, name, dit.Held{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			small, large := blockCounts(t, ops, m, 17), blockCounts(t, ops, m, 24)
			t.Logf("objects a block: %v at 289 tokens, %v at 576", small, large)
			for b, n := range large {
				bound := blockAllocs
				if m.Spec().Whole { // as much as sixteen blocks of a transformer
					bound *= 16
				}
				if m.Spec().Sound.Width > 0 { // a block has two streams
					bound *= 2
				}
				if n > float64(bound) {
					t.Errorf("block %d: %v objects, bound %d", b, n, bound)
				}
				if n > small[b]*1.5+32 { // more tiles start more goroutines, up to the number of threads
					t.Errorf("block %d: %v objects at 576 tokens, %v at 289", b, n, small[b])
				}
			}
			if slices.Max(small) == 0 {
				t.Error("no block allocates anything: the count does not work")
			}
		})
	}
}

// blockCounts returns how many objects each block allocates in a call with side x side tokens after the first.
func blockCounts(t *testing.T, ops engine.Ops, m dit.Model, side int) []float64 {
	t.Helper()
	const bytes = 64 << 20
	buf, err := ops.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	defer ops.Free(buf)
	spec := m.Spec()
	arena := engine.NewArena("activations", buf, bytes)
	env := dit.Env{Ops: ops, Arena: arena, Attend: dit.Whole(ops, arena)}
	grid := spec.Tokens(side*spec.PatchSize, side*spec.PatchSize)
	entry := dit.Entry{
		Context: dit.Array{Rows: 77, Cols: spec.ContextDim, Data: make([]float32, 77*spec.ContextDim)},
		Pooled:  make([]float32, spec.PooledDim),
	}
	if n := spec.Concat; n > 0 {
		y, x := grid.LatentY, grid.LatentX
		entry.Concat = dit.Reference{Y: y, X: x, Data: make([]float32, n*y*x)}
	}
	if spec.Context2Dim > 0 {
		entry.Context2 = dit.Array{Rows: 256, Cols: spec.Context2Dim, Data: make([]float32, 256*spec.Context2Dim)}
	}
	p, err := goldenrun.Prepare(env, m, []dit.Entry{entry}, grid)
	if err != nil {
		t.Fatal(err)
	}
	rows := dit.Rows{Image: dit.Range{End: grid.Tokens()}}
	if spec.JointText() {
		rows.Text = dit.Range{End: p.Lt}
	}
	s := dit.NewState(env, spec, p, goldenrun.Modulate(env, m, p, []float32{0.5}), 0, 1, rows, rows)
	x := env.Arena.Alloc(engine.F32, 1, grid.Tokens(), spec.Channels*spec.PatchSize*spec.PatchSize)
	ops.Upload(x, make([]float32, x.Len()))
	m.Embed(env, s, x)
	counts := make([]float64, len(spec.Blocks))
	for b := range spec.Blocks {
		var skip engine.Tensor
		if spec.Blocks[b].Skip >= 0 {
			skip = s.X
		}
		counts[b] = testing.AllocsPerRun(3, func() { m.Block(env, b, s, skip) })
	}
	return counts
}
