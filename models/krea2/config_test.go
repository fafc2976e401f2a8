package krea2

import (
	"reflect"
	"strings"
	"testing"

	"patchbay/models/weights"
)

// TestReleasedSize counts the parameters of the release by hand: E=6144, K=1536, F=16384, W=2560, G=6912.
func TestReleasedSize(t *testing.T) {
	d, err := Family().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	const e, k, f, w, g = 6144, 1536, 16384, 2560, 6912
	block := int64(3*e*e + 2*k*e + 3*e*f + 6*e + 2*e + 2*128)
	text := int64(5*w*w + 3*w*g + 2*w + 2*128)
	whole := 28*block + 4*text + 12 + w + w*e + e + e*e + e + 64*e + e + 256*e + e + e*e + e + 6*e*e + 6*e + e + 2*e +
		64*e + 64
	s := d.Spec
	if s.Params != whole || s.Blocks[3].Params != block || s.Groups() != 12 || s.Group() != 4 || len(s.Blocks) != 28 {
		t.Errorf("got %d parameters, %d in a block, %d groups of %d heads, %d blocks; want %d, %d, 12, 4, 28", s.Params,
			s.Blocks[3].Params, s.Groups(), s.Group(), len(s.Blocks), whole, block)
	}
	if n := s.Params / 1e7; n != 1282 { // 12.82 x 10^9, as published
		t.Errorf("got %d x 10^7 parameters, want 1282", n)
	}
	if !reflect.DeepEqual(axes(128), []int{32, 48, 48}) {
		t.Errorf("axes of a head of 128 are %v", axes(128))
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
	for _, want := range []Config{Family().Releases[0].Config.(Config), Family().Tiny.(Config)} {
		if got, err := Detect(weights.FromMap(shapes(t, want)), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestDetectRefusesWithReasons(t *testing.T) {
	for name, c := range map[string]struct {
		shape []int
		want  string
	}{
		"blocks.0.attn.wk.weight":                              {[]int{60, 192}, "blocks.0.attn.wk has 60 rows"},
		"blocks.0.attn.qknorm.qnorm.scale":                     {[]int{18}, "head dim 18"},
		"txtfusion.layerwise_blocks.0.attn.qknorm.qnorm.scale": {[]int{7}, "text width 16"},
		"last.linear.weight":                                   {[]int{32, 192}, "last.linear writes 32"},
	} {
		set := shapes(t, Family().Tiny.(Config))
		set[name] = weights.Stored{Shape: c.shape}
		if _, err := Detect(weights.FromMap(set), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that says %q", name, err, c.want)
		}
	}
}
