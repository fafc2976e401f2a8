//go:build cgo && fakegpu

package models_test

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/library"
	"patchbay/models/dit"
	"patchbay/models/flux"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/tests/fakegpu"
)

// TestLaunchesOfFLUX counts the launches of a FLUX block on the fake device, with cuBLASLt and bf16 as on a GPU. FLUX.1
// has 19 double blocks and 38 single ones; heads are as wide as its own, other sizes smaller.
func TestLaunchesOfFLUX(t *testing.T) {
	dir := fakegpu.Library(t)
	driver, err := cuda.Open(dir)
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check()
	_, _, err = driver.Use(&library.Search{Folders: dir})
	check()
	device, err := driver.Device(0)
	check()
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	ops, err := device.NewOps()
	check()
	t.Cleanup(func() {
		if err := ops.Close(); err != nil {
			t.Error(err)
		}
	})
	config := flux.Config{
		Hidden: 256, Heads: 2, Depth: 2, DepthSingle: 4, Axes: []int{16, 56, 56}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2, ContextDim: 128, VectorDim: 128, MLPHidden: 1024,
	}
	d, err := config.Describe(nil)
	check()
	declared, err := d.Declare()
	check()
	d, err = config.Describe(weights.Random(declared))
	check()
	net, err := d.Load(ops, dit.Held{})
	check()
	defer net.Close()
	const bytes = 32 << 20
	buf, err := ops.Alloc(bytes)
	check()
	defer ops.Free(buf)
	arena := engine.NewArena("activations", buf, bytes)
	env := dit.Env{Ops: ops, Arena: arena, DType: engine.BF16, Attend: dit.Whole(ops, arena)}
	spec, rows := net.Spec(), 20
	e := dit.Entry{
		Context: dit.Array{Rows: rows, Cols: spec.ContextDim, Data: make([]float32, rows*spec.ContextDim)},
		Pooled:  make([]float32, spec.PooledDim),
	}
	grid := spec.Tokens(16, 24)
	p, err := goldenrun.Prepare(env, net, []dit.Entry{e}, grid)
	check()
	mod := goldenrun.Modulate(env, net, p, []float32{0.5})
	seen := dit.Rows{Text: dit.Range{End: p.Lt}, Image: dit.Range{End: spec.Split(grid)}}
	x := arena.Alloc(env.DType, 1, grid.Tokens(), spec.FeaturesIn())
	var at []int64 // launches before each block
	for range 2 {  // the first time, shapes are compared with our kernels
		at = nil
		s := dit.NewState(env, spec, p, mod, 0, 1, seen, seen)
		net.Embed(env, s, x)
		for i := range spec.Blocks {
			at = append(at, device.Counts().Launches)
			net.Block(env, i, s, engine.Tensor{})
		}
		err = ops.Sync()
		check()
	}
	// Blocks 0 and 1 are double. A gated sum at the end of a block counts with the next one, whose norm it joins.
	double, single := at[2]-at[1], at[4]-at[3]
	all := 19*double + 38*single
	t.Logf("%d launches a double block, %d a single one, %d a step of FLUX.1", double, single, all)
	if all == 0 || all > mostLaunches {
		t.Errorf("%d and %d launches a block, %d a step, want at most %d", double, single, all, mostLaunches)
	}
}

// mostLaunches is the bound of docs/gpu.md, Launches.
const mostLaunches = 494
