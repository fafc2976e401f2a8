package hunyuan

import (
	"reflect"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

func released() Config {
	return Config{
		Hidden: 1408, Heads: 16, Depth: 40, Channels: 4, PatchSize: 2, TextDim: 1024, T5Dim: 2048,
		MLPHidden: 6144, T5Hidden: 8192, PoolDim: 1024,
	}
}

// TestSkipsAndSizes checks the skip connection of every block of the released depth, and the parameters of a block
// against a count by hand.
func TestSkipsAndSizes(t *testing.T) {
	d, err := released().Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := d.Spec
	const e, f, c = 1408, 6144, 1024
	linear := func(n, k int) int64 { return int64(n)*int64(k) + int64(n) }
	plain := linear(3*e, e) + linear(e, e) + linear(e, e) + linear(2*e, c) + linear(e, e) + linear(f, e) + linear(e, f) +
		linear(e, e) + 3*2*e + 8*e/16
	skipping := plain + linear(e, 2*e) + 4*e
	stack := []int{}
	for i, b := range s.Blocks { // the original pushes results of blocks before n/2-1 and pops them after n/2
		want, params := -1, plain
		if i > 20 {
			want, stack, params = stack[len(stack)-1], stack[:len(stack)-1], skipping
		}
		if i < 19 {
			stack = append(stack, i)
		}
		if b.Skip != want || b.Params != params || b.Kind != dit.Cross {
			t.Errorf("block %d: got skip %d, %d parameters; want %d, %d", i, b.Skip, b.Params, want, params)
		}
	}
	if s.HeadDim != 88 || s.OutChannels != 8 || s.Params < 1.49e9 || s.Params > 1.51e9 { // "1.5B" in the paper
		t.Errorf("got head dim %d, %d channels out, %d parameters", s.HeadDim, s.OutChannels, s.Params)
	}
}

func TestDetectFindsTheConfig(t *testing.T) {
	newest := released()
	newest.Depth = 4
	older := newest
	older.SizeCond, older.StyleCond = true, true
	for _, want := range []Config{newest, older} {
		declared, err := declare(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"", "model.diffusion_model."} {
			m := map[string]weights.Stored{}
			for _, d := range declared {
				m[prefix+d.Name] = weights.Stored{Shape: d.Shape}
			}
			if got, err := Detect(weights.FromMap(m).Prefix(prefix), nil); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("prefix %q: got %+v, %v; want %+v", prefix, got, err, want)
			}
		}
	}
}

func TestWrongFilesAndTexts(t *testing.T) {
	set, config, err := goldenweights.Set("hydit-a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Detect(set, nil); err != nil && !strings.Contains(err.Error(), "num_heads") {
		t.Errorf("16 heads: got error %v", err)
	}
	m, err := goldenrun.Of(Family())(ref.New(), set, map[string]string{"config": string(config)}, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	env, err := goldenrun.NewEnv(ref.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text := func(n, c int) dit.Array { return dit.Array{Rows: n, Cols: c, Data: make([]float32, n*c)} }
	for _, k := range []struct {
		e    dit.Entry
		want string
	}{
		{dit.Entry{Context: text(76, 48), Context2: text(256, 64)}, "76 BERT tokens, want at least 77"},
		{dit.Entry{Context: text(77, 48), Context2: text(255, 64)}, "255 mT5 tokens, want at least 256"},
		{dit.Entry{Context: text(77, 48), Context2: text(256, 64), Size: []float32{1}}, "size has 1 values, want 6"},
		{dit.Entry{Context: text(77, 48)}, "second context has 0 columns, want 64"},
	} {
		if _, err := m.Prepare(env, []dit.Entry{k.e}, m.Spec().Tokens(8, 8)); err == nil ||
			!strings.Contains(err.Error(), k.want) {
			t.Errorf("got error %v, want one that says %q", err, k.want)
		}
	}
}

// TestSizeDefaultsToTheGrid checks that, without a size, version 1.1 gets the image's own size and no crop.
func TestSizeDefaultsToTheGrid(t *testing.T) {
	set, config, err := goldenweights.Set("hydit-b")
	if err != nil {
		t.Fatal(err)
	}
	m, err := goldenrun.Of(Family())(ref.New(), set, map[string]string{"config": string(config)}, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	cases, err := goldenweights.Cases("hydit-b")
	if err != nil {
		t.Fatal(err)
	}
	entry := cases[0].Entries()[0]
	run := func(size []float32) []float32 {
		entry.Size = size
		env, err := goldenrun.NewEnv(ref.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := goldenrun.Once(env, m, entry, 8, 12, 999)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	got, want := run(nil), run([]float32{64, 96, 64, 96, 0, 0})
	if _, err := goldenrun.Compare(got, want, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := goldenrun.Compare(run([]float32{512, 96, 64, 96, 0, 0}), want, 1e-3); err == nil {
		t.Fatal("another size made no difference, so this test shows nothing")
	}
}

// declare lists the tensors of a model with this config.
func declare(c Config) ([]weights.Declared, error) {
	d, err := c.Describe(nil)
	if err != nil {
		return nil, err
	}
	return d.Declare()
}
