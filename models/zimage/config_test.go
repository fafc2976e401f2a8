package zimage

import (
	"reflect"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

// TestReleasedSize counts the parameters of Z-Image by hand: E=3840, F=10240, T=2560.
func TestReleasedSize(t *testing.T) {
	d, err := Family().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	const e, f, c = 3840, 10240, 2560
	linear := func(n, k int) int64 { return int64(n)*int64(k) + int64(n) }
	plain := int64(4*e*e+3*e*f) + 4*e + 2*128
	whole := 2*plain + 32*(plain+linear(4*e, 256)) + linear(e, 64) + linear(e, c) + c + linear(1024, 256) +
		linear(256, 1024) + linear(e, 256) + linear(64, e) + 2*e
	s := d.Spec
	if s.Params != whole || s.Blocks[5].Params != plain+linear(4*e, 256) || s.Heads != 30 || !s.JointText() ||
		len(s.Blocks) != 32 {
		t.Errorf("got %d parameters, %d in a block, %d heads, %d blocks; want %d, %d, 30, 32", s.Params, s.Blocks[5].Params,
			s.Heads, len(s.Blocks), whole, plain+linear(4*e, 256))
	}
	if g := s.Tokens(130, 100); g.Tokens() != 65*50+14 || s.TextTokens(33) != 64 || s.TextTokens(32) != 32 {
		t.Errorf("got %d image tokens and %d for 33 of text, want %d and 64", g.Tokens(), s.TextTokens(33), 65*50+14)
	}
}

// shapes returns the tensors of a config by name, with shapes but without data.
func shapes(t *testing.T, c Config) map[string]weights.Stored {
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
	turbo := Family().Releases[0].Config.(Config)
	turbo.Depth = 3
	bare := turbo
	bare.Multiple = 0
	for _, want := range []Config{turbo, bare} {
		if got, err := Detect(weights.FromMap(shapes(t, want)), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestDetectRefusesWithReasons(t *testing.T) {
	tiny := Family().Tiny.(Config)
	fewer := shapes(t, tiny)
	for name := range fewer {
		if strings.HasPrefix(name, "context_refiner.1.") {
			delete(fewer, name)
		}
	}
	axes := map[string]string{"config": `{"axes_dims": [8, 8, 8]}`}
	for _, c := range []struct {
		set  map[string]weights.Stored
		meta map[string]string
		want string
	}{
		{shapes(t, tiny), nil, "axes_dims [] must be 3 sizes"},
		{shapes(t, tiny), map[string]string{"config": `{"axes_dims": [7, 9, 8]}`}, "even"},
		{shapes(t, tiny), map[string]string{"config": `{"patch_size": 0}`}, "patch_size 0"},
		{shapes(t, tiny), map[string]string{"config": `{`}, "metadata"},
		{fewer, axes, "2 blocks refine the picture and 1 the text"},
	} {
		if _, err := Detect(weights.FromMap(c.set), c.meta); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}

// TestPositions compares the position of every token, including pads of text and image, with the one ComfyUI recorded.
func TestPositions(t *testing.T) {
	goldens().Positions(t, func(m dit.Model, c goldenrun.Case) [][]float32 {
		lt, g := m.Spec().TextTokens(c.Context[1]), m.Spec().Tokens(c.X[2], c.X[3])
		return goldenrun.Axes(positions(lt, g))
	})
}
