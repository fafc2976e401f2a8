package minimaxh3

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

// TestReleasedSize counts the parameters of the releases by hand.
func TestReleasedSize(t *testing.T) {
	linear := func(n, k int) int64 { return int64(n)*int64(k) + int64(n) }
	for _, r := range Family().Releases {
		c := r.Config.(Config)
		e, inner := int64(c.Hidden), int64(c.Heads*c.HeadDim)
		text := 4*e*inner + 3*e*int64(c.MLPHidden) + 2*e + 2*int64(c.HeadDim)
		block := text + linear(18*c.Hidden, c.TimeDim)
		times := int64(c.Table * c.TimeDim)
		if c.Table == 0 {
			times = linear(5376, 256) + linear(2688, 5376)
		}
		want := 50*block + 2*text + e + times + linear(c.Hidden, 96) + linear(c.Hidden, 32) + linear(c.Hidden, 5120) + 16 +
			e + linear(2*c.Hidden, c.TimeDim) + linear(96, c.Hidden) + linear(32, c.Hidden)
		d, err := c.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := d.Spec
		if s.Params != want || s.Blocks[3].Params != block || s.HeadDim != 128 || s.Heads != 56 || !s.JointText() ||
			s.FeaturesIn() != 96 {
			t.Errorf("%s: %d parameters, %d in a block, %d heads of %d; want %d, %d, 56 of 128", r.Name, s.Params,
				s.Blocks[3].Params, s.Heads, s.HeadDim, want, block)
		}
	}
}

// tensors returns the tensors of a config by name, with shapes but without data.
func tensors(t *testing.T, c Config) map[string]weights.Stored {
	t.Helper()
	d, err := c.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]weights.Stored{}
	for _, d := range declared {
		m[d.Name] = weights.Stored{Shape: d.Shape}
	}
	return m
}

func TestDetectFindsTheConfig(t *testing.T) {
	tiny := Family().Tiny.(Config)
	for _, want := range []Config{Family().Releases[0].Config.(Config), Family().Releases[1].Config.(Config), tiny} {
		if got, err := Detect(weights.FromMap(tensors(t, want)), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	for _, c := range []struct {
		name, want string
		shape      []int
	}{
		{"blocks.0.attn.qkv_proj.weight", "100 rows, want a multiple of 3 heads", []int{100, 96}},
		{"blocks.0.attn.q_norm.weight", "of an even width, that of q_norm, which is 7", []int{7}},
		{"rope.inv_freq", "9 frequencies, heads of 16 have room for 2", []int{9}},
		{"audio_patch_proj.weight", "reads 5 numbers, but final_layer writes 32", []int{96, 5}},
		{"video_patch_proj.weight", "reads 64 numbers, but final_layer writes 96", []int{96, 64}},
		{"adaln_t_table", "1 row", []int{1, 24}},
	} {
		set := tensors(t, tiny)
		set[c.name] = weights.Stored{Shape: c.shape}
		if _, err := Detect(weights.FromMap(set), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: got %v, want an error with %q", c.name, c.shape, err, c.want)
		}
	}
}

// TestEntriesThatDoNotFit checks the refusals of Prepare.
func TestEntriesThatDoNotFit(t *testing.T) {
	set, _, err := goldenweights.Set("h3-b")
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
	text := dit.Array{Rows: 2, Cols: 56, Data: make([]float32, 2*56)}
	small := dit.Reference{Y: 2, X: 2, Condition: dit.Condition{Frame: 1}, Data: make([]float32, 24*4)}
	sound := dit.Reference{Y: 2, X: 3, Condition: dit.Condition{Sound: true}, Data: make([]float32, 24*6)}
	grid := m.Spec().WithSound(m.Spec().FrameTokens(2, 8, 4), 2, 8)
	for _, c := range []struct {
		entries []dit.Entry
		want    string
	}{
		{[]dit.Entry{{Context: text, References: []dit.Reference{small}}}, "frames of 1 x 1 tokens, want 2 x 2"},
		{[]dit.Entry{{Context: text, References: []dit.Reference{sound}}}, "144 values, want 32 channels of 2 x 3"},
		{[]dit.Entry{{Context: text}, {Context: text, Pictures: []dit.Range{{Start: 0, End: 1}}}}, "pictures are rows"},
	} {
		if _, err := m.Prepare(env, c.entries, grid); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}

// TestGatesAreNotRead checks that the gates of sparse attention in FastH3's files are known and
// that the model is that of a file without them; other names are unknown.
func TestGatesAreNotRead(t *testing.T) {
	tiny := Family().Tiny.(Config)
	plain, err := tiny.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := plain.Declare()
	if err != nil {
		t.Fatal(err)
	}
	for i := range tiny.Depth {
		declared = append(declared, weights.Declared{
			Name: fmt.Sprintf("blocks.%d.attn.to_gate_compress.weight", i), Shape: []int{tiny.Heads * tiny.HeadDim, tiny.Hidden},
		})
	}
	declared = append(declared, weights.Declared{Name: "blocks.1.attn.to_gate.weight", Shape: []int{1}})
	d, err := family.Open([]family.Family{Family()}, weights.Undefined(declared), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.Unused, []string{"blocks.1.attn.to_gate.weight"}) || d.Spec.Params != plain.Spec.Params {
		t.Errorf("unknown %v, %d parameters; want blocks.1.attn.to_gate.weight, %d", d.Unused, d.Spec.Params,
			plain.Spec.Params)
	}
}
