package qwenimage

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

// TestReleasedSize counts the parameters of Qwen-Image by hand: E=3072, F=12288, T=3584.
func TestReleasedSize(t *testing.T) {
	d, err := Family().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	const e, f, c = 3072, 12288, 3584
	linear := func(n, k int) int64 { return int64(n)*int64(k) + int64(n) }
	block := 2 * (linear(6*e, e) + 4*linear(e, e) + 2*128 + linear(f, e) + linear(e, f))
	whole := 60*block + linear(e, 64) + c + linear(e, c) + linear(e, 256) + linear(e, e) + linear(2*e, e) + linear(64, e)
	if s := d.Spec; s.Params != whole || s.Blocks[7].Params != block || s.Heads != 24 || !s.JointText() ||
		len(s.Blocks) != 60 {
		t.Errorf("got %d parameters, %d in a block, %d heads, %d blocks; want %d, %d, 24, 60", s.Params, s.Blocks[7].Params,
			s.Heads, len(s.Blocks), whole, block)
	}
}

// shapes returns the tensors of a config with names and shapes but without data.
func shapes(t *testing.T, c Config) *weights.Set {
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
	return weights.FromMap(m)
}

func TestDetectFindsTheConfig(t *testing.T) {
	for _, r := range Family().Releases {
		want := r.Config.(Config)
		want.Depth = 3
		if got, err := Detect(shapes(t, want), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", r.Name, got, err, want)
		}
	}
}

func TestDetectRefusesWithReasons(t *testing.T) {
	tiny := Family().Tiny.(Config)
	lost := shapes(t, tiny)
	for _, c := range []struct {
		set  *weights.Set
		meta string
		want string
	}{
		{lost, `{}`, "axes_dims_rope [] must be 3 sizes"},
		{lost, `{"axes_dims_rope": [7, 9, 8]}`, "even"},
		{lost, `{`, "metadata"},
		{weights.FromMap(nil), `{}`, "head dim 0"},
	} {
		_, err := Detect(c.set, map[string]string{"config": c.meta})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}

// TestPositions compares the position of every token with the one ComfyUI recorded.
func TestPositions(t *testing.T) {
	goldens().Positions(t, func(m dit.Model, c goldenrun.Case) [][]float32 {
		e, g := c.Entries()[0], m.Spec().FrameTokens(c.T, c.X[2], c.X[3])
		at := m.(*Model).positions(&e, g)
		textRows, lt := e.Context.Rows, m.Spec().JointTokens(&e) // ComfyUI puts references last
		return goldenrun.Axes(slices.Concat(at[:textRows], at[lt:], at[textRows:lt]))
	})
}
