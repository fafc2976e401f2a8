package sd3

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

// TestReleasedSizes compares with the parameter counts of SD3 medium and SD3.5 large on the model hub, which exclude
// the position table.
func TestReleasedSizes(t *testing.T) {
	for _, c := range []struct {
		config Config
		params int64
	}{
		{Config{Hidden: 1536, Blocks: 24, MLPHidden: 6144}, 2028328000},
		{Config{Hidden: 2432, Blocks: 38, MLPHidden: 9728, QKNorm: true}, 8056627520},
	} {
		k := c.config
		k.Channels, k.PatchSize, k.PosSide, k.ContextDim, k.PooledDim = 16, 2, 192, 4096, 2048
		d, err := k.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := d.Spec
		if got := s.Params - int64(k.PosSide*k.PosSide*k.Hidden); got != c.params || s.Heads != k.Hidden/64 ||
			s.Blocks[k.Blocks-1].Params >= s.Blocks[0].Params {
			t.Errorf("width %d: got %d parameters, %d heads; want %d, %d", k.Hidden, got, s.Heads, c.params, k.Hidden/64)
		}
	}
}

func TestDetectFindsTheConfig(t *testing.T) {
	medium := Config{
		Hidden: 1536, Blocks: 5, Channels: 16, PatchSize: 2, PosSide: 384, ContextDim: 4096, PooledDim: 2048, MLPHidden: 6144,
		QKNorm: true, Dual: []int{0, 1, 2},
	}
	plain := Config{
		Hidden: 1536, Blocks: 3, Channels: 16, PatchSize: 2, PosSide: 192, ContextDim: 4096,
		PooledDim: 2048, MLPHidden: 6144,
	}
	for _, want := range []Config{medium, plain, tiny()} {
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
		d, err := want.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := d.Spec
		for i, b := range s.Blocks {
			attends := 1
			if i < len(want.Dual) {
				attends = 2
			}
			if b.Attends != attends {
				t.Errorf("block %d attends %d times, want %d", i, b.Attends, attends)
			}
		}
	}
}

func TestWrongFilesAndSizes(t *testing.T) {
	set, _, err := goldenweights.Set("sd3-a")
	if err != nil {
		t.Fatal(err)
	}
	m, err := goldenrun.Of(Family())(ref.New(), set, nil, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	env, err := goldenrun.NewEnv(ref.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	entry := dit.Entry{Context: dit.Array{Rows: 2, Cols: 40, Data: make([]float32, 80)}}
	_, err = m.Prepare(env, []dit.Entry{entry}, m.Spec().Tokens(8, 50))
	if err == nil || !strings.Contains(err.Error(), "4 x 25 tokens, this model has positions for 24 x 24") {
		t.Errorf("a latent wider than the position table: got error %v", err)
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

func tiny() Config { return Family().Tiny.(Config) }
