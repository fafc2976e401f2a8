package auraflow

import (
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
	"patchbay/tests/golden"
)

// TestReleasedSize counts the parameters of AuraFlow 0.3 by hand: E=3072, F=8192, T=2048.
func TestReleasedSize(t *testing.T) {
	d, err := Family().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	const e, f, c = 3072, 8192, 2048
	const stream = 6*e*e + 4*e*e + 3*e*f
	want := int64(4*2*stream+32*stream) + 96*96*e + 8*e + e*16 + e + c*e + (256*e + e) + (e*e + e) + 2*e*e + 16*e
	if s := d.Spec; s.Params != want || s.HeadDim != 256 || s.TextTokens(256) != 264 || !s.JointText() {
		t.Errorf("got %d parameters, heads of %d, %d tokens of text; want %d, 256, 264", s.Params, s.HeadDim,
			s.TextTokens(256), want)
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
	want := Family().Releases[0].Config.(Config)
	if got, err := Detect(weights.FromMap(shapes(t, want)), nil); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// TestNamesOfDiffusers checks that a file with diffusers' names, as ComfyUI's table has them, and with the last layer
// in the order (scale, shift) gives the weights of the original file.
func TestNamesOfDiffusers(t *testing.T) {
	var recorded map[string]struct{ Diffusers map[string]string }
	if err := golden.JSON("modern/weights.json", &recorded); err != nil {
		t.Fatal(err)
	}
	set, config, err := goldenweights.Set("aura-a")
	if err != nil {
		t.Fatal(err)
	}
	file := map[string]weights.Stored{}
	for theirs, original := range recorded["aura-a"].Diffusers {
		s, ok := set.Get(original)
		if !ok {
			t.Fatalf("no tensor %s", original)
		}
		if half := len(s.Data) / 2; original == "modF.1.weight" {
			s.Data = slices.Concat(s.Data[half:], s.Data[:half])
		}
		file[theirs] = s
	}
	if len(file) != len(set.Names()) {
		t.Fatalf("%d tensors have names of diffusers, want %d", len(file), len(set.Names()))
	}
	meta := map[string]string{"config": string(config)}
	var out [2][]float32
	for i, set := range []*weights.Set{set, weights.FromMap(file)} {
		d, err := family.Open([]family.Family{Family()}, set, meta)
		if err != nil {
			t.Fatal(err)
		}
		m, err := d.Load(ref.New(), dit.Held{})
		if err != nil {
			t.Fatal(err)
		}
		env, err := goldenrun.NewEnv(ref.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		cases, err := goldenweights.Cases("aura-a")
		if err != nil {
			t.Fatal(err)
		}
		if out[i], err = goldenrun.Whole(env, m, cases[0], nil); err != nil {
			t.Fatal(err)
		}
		m.Close()
	}
	if !slices.Equal(out[0], out[1]) {
		t.Error("the same weights under other names give another result")
	}
}

func TestDetectRefusesWithReasons(t *testing.T) {
	tiny := Family().Tiny.(Config)
	odd, one := shapes(t, tiny), tiny
	odd["positional_encoding"] = weights.Stored{Shape: []int{1, 35, 144}}
	one.Single = 0
	six := map[string]string{"config": `{"n_heads": 6}`}
	for _, c := range []struct {
		set  map[string]weights.Stored
		meta map[string]string
		want string
	}{
		{shapes(t, tiny), nil, "width 144 is not a multiple of 0 heads"},
		{shapes(t, tiny), map[string]string{"config": `{"patch_size": 0}`}, "patch_size 0"},
		{shapes(t, tiny), map[string]string{"config": `{`}, "metadata"},
		{odd, six, "35 rows, want a square"},
		{shapes(t, one), six, "no single_layers"},
	} {
		if _, err := Detect(weights.FromMap(c.set), c.meta); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}
