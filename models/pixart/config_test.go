package pixart

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

// TestSizes counts the parameters of the released alpha model by hand: E=1152, F=4608, T=4096.
func TestSizes(t *testing.T) {
	const e, f, c = 1152, 4608, 4096
	linear := func(n, k int) int64 { return int64(n)*int64(k) + int64(n) }
	block := linear(3*e, e) + 2*linear(e, e) + linear(2*e, e) + linear(e, e) + linear(f, e) + linear(e, f) + 6*e
	ends := linear(e, 16) + linear(e, 256) + linear(e, e) + linear(6*e, e) + linear(e, c) + linear(e, e) +
		linear(32, e) + 2*e
	micro := 2 * (linear(e/3, 256) + linear(e/3, e/3))
	for _, alpha := range []bool{true, false} {
		d, err := Config{
			Hidden: e, Heads: 16, Depth: 28, Channels: 4, PatchSize: 2, ContextDim: c, MLPHidden: f,
			MicroSize: alpha,
		}.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := d.Spec
		want := 28*block + ends
		if alpha {
			want += micro
		}
		if s.Params != want || s.Blocks[3].Params != block || s.HeadDim != 72 || s.JointText() || s.OutChannels != 8 {
			t.Errorf("alpha %v: got %d parameters, %d in a block; want %d, %d", alpha, s.Params, s.Blocks[3].Params, want, block)
		}
	}
}

func TestDetectFindsTheConfig(t *testing.T) {
	alpha := Config{
		Hidden: 1152, Heads: 16, Depth: 3, Channels: 4, PatchSize: 2, ContextDim: 4096, MLPHidden: 4608,
		MicroSize: true, Interpolation: 2,
	}
	sigma := Config{
		Hidden: 1152, Heads: 16, Depth: 2, Channels: 4, PatchSize: 2, ContextDim: 4096, MLPHidden: 4608,
	}
	for _, want := range []Config{alpha, sigma} {
		declared, err := declare(want)
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]weights.Stored{"y_embedder.y_embedding": {Shape: []int{120, 4096}}}
		if want.Interpolation != 0 {
			m["pos_embed"] = weights.Stored{Shape: []int{1, 64 * 64, 1152}} // 1024 px
		}
		for _, d := range declared {
			m[d.Name] = weights.Stored{Shape: d.Shape}
		}
		if got, err := Detect(weights.FromMap(m), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestWrongFilesAndSizes(t *testing.T) {
	set, config, err := goldenweights.Set("pixart-a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Detect(set, nil); err != nil {
		t.Errorf("16 heads of 6: %v", err)
	}
	if _, err := Detect(set, map[string]string{"config": `{"num_heads": 7}`}); err == nil ||
		!strings.Contains(err.Error(), "7 heads") {
		t.Errorf("7 heads: got error %v", err)
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
	entry := dit.Entry{Context: dit.Array{Rows: 2, Cols: 48, Data: make([]float32, 96)}}
	for _, k := range []struct {
		y, x int
		size []float32
		want string
	}{{35, 36, nil, "multiples of 2"}, {32, 32, nil, "too small"}, {36, 36, []float32{1, 2}, "size has 2 values"}} {
		entry.Size = k.size
		if _, err := m.Prepare(env, []dit.Entry{entry}, m.Spec().Tokens(k.y, k.x)); err == nil ||
			!strings.Contains(err.Error(), k.want) {
			t.Errorf("latent %d x %d: got error %v, want one that says %q", k.y, k.x, err, k.want)
		}
	}
}

// TestKeyLengthLimitsTheText checks that an entry with a context length equals one with a context cut to that length.
func TestKeyLengthLimitsTheText(t *testing.T) {
	set, config, err := goldenweights.Set("pixart-b")
	if err != nil {
		t.Fatal(err)
	}
	m, err := goldenrun.Of(Family())(ref.New(), set, map[string]string{"config": string(config)}, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	long := dit.Array{Rows: 9, Cols: 48, Data: make([]float32, 9*48)}
	for i := range long.Data {
		long.Data[i] = float32(i%7) - 3
	}
	short := dit.Array{Rows: 4, Cols: 48, Data: long.Data[:4*48]}
	run := func(e dit.Entry) []float32 {
		env, err := goldenrun.NewEnv(ref.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := goldenrun.Once(env, m, e, 36, 40, 300)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	got, want := run(dit.Entry{Context: long, ContextLen: 4}), run(dit.Entry{Context: short})
	if _, err := goldenrun.Compare(got, want, 1e-6); err != nil {
		t.Fatal(err)
	}
	if _, err := goldenrun.Compare(run(dit.Entry{Context: long}), want, 1e-3); err == nil {
		t.Fatal("the tokens behind the length made no difference, so this test shows nothing")
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
