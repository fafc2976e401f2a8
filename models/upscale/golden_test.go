package upscale

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// tolerance is for images in 0..1, where one 8-bit level is 4e-3.
const tolerance = 1e-5

func recordedCases(t *testing.T) []golden.Upscaled {
	t.Helper()
	var all golden.Pictures
	if err := golden.JSON("pictures.json", &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Upscaled) < 12 {
		t.Fatalf("%d recorded pictures, want 12", len(all.Upscaled))
	}
	return all.Upscaled
}

// opened loads a recorded model. If ops defers calls, the arenas of the environment poison released memory.
func opened(t *testing.T, ops engine.Ops, name string) (*Model, dit.TaskEnv) {
	t.Helper()
	set, err := goldenweights.Upscaler(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(ops, set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m, dit.TaskEnv{Ops: ops, Take: func(bytes int) (*engine.Arena, error) {
		buf, err := ops.Alloc(bytes)
		arena := engine.NewArena("test", buf, bytes)
		if late, ok := ops.(*deferred.Ops); ok {
			late.Watch(arena)
		}
		return arena, err
	}}
}

// draw upscales all images of a case.
func draw(t *testing.T, ops engine.Ops, c golden.Upscaled, strip int) []float32 {
	t.Helper()
	m, env := opened(t, ops, c.Model)
	m.strip = strip
	if m.Config.Scale != c.Scale {
		t.Errorf("%s: scale %d, want %d", c.Model, m.Config.Scale, c.Scale)
	}
	b, y, x := c.Shape[0], c.Shape[1], c.Shape[2]
	n, pixels, tiles := y*x*3, golden.Picture(c.Picture, b, y, x), 0
	var out []float32
	for i := range b {
		got, err := m.Upscale(env, pixels[i*n:(i+1)*n], y, x, c.Tile, func(done, total int) { tiles = total - done })
		if err != nil {
			t.Fatalf("%s: %v", c.Model, err)
		}
		if tiles != 0 {
			t.Errorf("%s: %d tiles are not told to be done", c.Model, tiles)
		}
		out = append(out, got...)
	}
	return out
}

func compare(t *testing.T, ops engine.Ops, c golden.Upscaled, got []float32) {
	t.Helper()
	if n := c.Size[0] * c.Size[1] * c.Size[2] * c.Size[3]; len(got) != n || len(c.Values) != (n+c.Step-1)/c.Step {
		t.Errorf("%s %v: %d values, want %d", c.Model, c.Shape, len(got), n)
		return
	}
	worst := 0.0
	for i, want := range c.Values {
		d := math.Abs(float64(got[i*c.Step]) - float64(want))
		if !(d <= tolerance) {
			t.Errorf("%s %s %v, tile %d, %s: value %d is %v, want %v", c.Model, c.Picture, c.Shape, c.Tile, ops.Name(), i*c.Step,
				got[i*c.Step], want)
			return
		}
		worst = max(worst, d)
	}
	t.Logf("%s %v, tile %d, %s: error %.2g", c.Model, c.Shape, c.Tile, ops.Name(), worst)
}

// TestPicturesEqualComfyUIs compares images with those of ComfyUI 0.33.0 (spandrel 0.4.2): all name layouts of RRDBNet,
// pixel unshuffle, odd sides, sides of 1, batches, and tiles of both sizes.
func TestPicturesEqualComfyUIs(t *testing.T) {
	cases, best := recordedCases(t), goldenrun.NewOps().Name()
	on := func(t *testing.T, ops engine.Ops) {
		for _, c := range cases {
			if ops.Name() == best || c.Shape[1]*c.Shape[2] < 400 {
				compare(t, ops, c, draw(t, ops, c, stripBytes))
			}
		}
	}
	goldenrun.EachOps(t, on)
	on(t, ref.New())
	on(t, deferred.New(ref.New()))
}

// TestStripsChangeNothing checks that strips of two rows give the same bits as one strip of all rows.
func TestStripsChangeNothing(t *testing.T) {
	for _, c := range recordedCases(t) {
		if c.Shape[1]*c.Shape[2] > 400 {
			continue
		}
		ops := goldenrun.NewOps()
		if got, want := draw(t, ops, c, 1), draw(t, ops, c, stripBytes); !slices.Equal(got, want) {
			t.Errorf("%s %v: strips of two rows give another picture", c.Model, c.Shape)
		}
	}
}

// TestOthersAreRefusedByName checks the errors for networks that spandrel supports and this package does not, and for
// models of other shapes.
func TestOthersAreRefusedByName(t *testing.T) {
	with := func(model string, change map[string][]int) *weights.Set {
		tensors := map[string]weights.Stored{}
		if model != "" {
			set, err := goldenweights.Upscaler(model)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range set.Names() {
				tensors[n], _ = set.Get(n)
			}
		}
		for name, shape := range change {
			n := 1
			for _, d := range shape {
				n *= d
			}
			if tensors[name] = (weights.Stored{DType: engine.F32, Shape: shape, Data: make([]byte, 4*n)}); shape == nil {
				delete(tensors, name)
			}
		}
		return weights.FromMap(tensors)
	}
	for text, set := range map[string]*weights.Set{
		"looks like SwinIR": with("", map[string][]int{
			"conv_first.weight": {60, 3, 3, 3}, "layers.0.residual_group.blocks.0.norm1.weight": {60},
		}),
		"looks like HAT": with("", map[string][]int{
			"layers.0.residual_group.blocks.0.norm1.weight":            {60},
			"layers.0.residual_group.blocks.0.conv_block.cab.0.weight": {20, 60, 3, 3},
		}),
		"looks like ESRGAN+": with("old-x4", map[string][]int{
			"model.1.sub.0.RDB1.conv1x1.weight": {32, 8, 1, 1},
		}),
		"looks like SPAN": with("", map[string][]int{
			"block_1.c1_r.sk.weight": {3, 3, 1, 1},
		}),
		"holds no upscale model": with("", map[string][]int{
			"decoder.up.0.block.0.norm1.weight": {3},
		}),
		"reads pictures of 1 channels": with("new-x4", map[string][]int{
			"conv_first.weight": {12, 1, 3, 3},
		}),
		"gives pictures of 4 channels": with("new-x4", map[string][]int{
			"conv_last.weight": {4, 12, 3, 3},
		}),
		"gives 47 values": with("compact-x4", map[string][]int{
			"body.8.weight": {47, 8, 3, 3},
		}),
		"doubles pictures 1 times and halves them before": with("old-x2", map[string][]int{
			"model.0.weight": {8, 48, 3, 3},
		}),
		"body.1.rdb3.conv5.bias": with("old-x4", map[string][]int{
			"model.1.sub.1.RDB3.conv5.0.bias": nil,
		}),
		"extra.weight": with("new-x2", map[string][]int{
			"extra.weight": {3},
		}),
	} {
		_, err := Open(ref.New(), set)
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
}

// TestUpscalingStops checks that an error of Check stops upscaling.
func TestUpscalingStops(t *testing.T) {
	stop, calls := errors.New("stop"), 0
	m, env := opened(t, goldenrun.NewOps(), "old-x4")
	env.Check = func() error {
		if calls++; calls == 3 {
			return stop
		}
		return nil
	}
	if _, err := m.Upscale(env, make([]float32, 3*4*4), 4, 4, 512, nil); !errors.Is(err, stop) || calls != 3 {
		t.Errorf("got %v after %d checks, want the third one's error", err, calls)
	}
	if _, err := m.Upscale(env, make([]float32, 5), 4, 4, 512, nil); err == nil {
		t.Error("a picture of too few values is taken")
	}
}

// TestMemoryOfATile checks the arena size of a tile of 512 x 512 pixels for the released RRDBNet: 64 channels, growth
// of 32 per layer, scale 4.
func TestMemoryOfATile(t *testing.T) {
	const e, g, side = 64, 32, 512
	net := &rrdb{Block: make([]rrdbBlock, 2), Up: make([]doubled, 2)}
	weight := func(n, c int) *engine.Weight {
		return &engine.Weight{Base: &engine.Packed{DType: engine.F32, N: n, K: 9 * c}, Bias: engine.NewTensor(engine.Buf{},
			engine.F32, n)}
	}
	net.First, net.Body, net.HR, net.Last = weight(e, 3), weight(e, e), weight(e, e), weight(3, e)
	for i := range net.Up {
		net.Up[i].Conv = weight(e, e)
	}
	for i := range net.Block {
		b := &net.Block[i]
		for _, d := range []*dense{&b.Dense1, &b.Dense2, &b.Dense3} {
			d.Conv1, d.Conv2, d.Conv3 = weight(g, e), weight(g, e+g), weight(g, e+2*g)
			d.Conv4, d.Conv5 = weight(g, e+3*g), weight(e, e+4*g)
		}
	}
	w := &walk{ops: engine.NewRecorder(), arena: engine.NewMeasuringArena("upscale"), strip: stripBytes}
	if err := net.walk(w, w.alloc(side, side, 3), func(engine.Tensor) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got, most := w.arena.Peak()>>20, 512; got < 300 || got > most {
		t.Errorf("a tile takes %d MiB, want at most %d", got, most)
	}
	t.Logf("%d MiB", w.arena.Peak()>>20)
}
