package flux3

import (
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"patchbay/models/sampling"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// TestReleasedSize counts the parameters of the releases by hand: E=3072, F=9216, T=20480.
func TestReleasedSize(t *testing.T) {
	const e, f, c = 3072, 9216, 20480
	block, time := int64(4*e*e+3*e*f+2*128), int64(256*e+e*e)
	base := (3*5+28)*block + time + 2*128*e + c*e + 6*3*e*e + 2*e*e + 128*e
	for i, whole := range []int64{base, base + time} {
		d, err := Family().Releases[i].Config.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := d.Spec; s.Params != whole || s.Blocks[3].Params != block || s.Blocks[7].Params != block ||
			s.EmbedParams < 10*block || !s.JointText() || len(s.Blocks) != 33 {
			t.Errorf("got %d parameters, %d in a block, %d of embedding, %d blocks; want %d, %d, at least %d, 33", s.Params,
				s.Blocks[3].Params, s.EmbedParams, len(s.Blocks), whole, block, 10*block)
		}
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
	for _, r := range Family().Releases {
		want := r.Config.(Config)
		if got, err := Detect(weights.FromMap(shapes(t, want)), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", r.Name, got, err, want)
		}
	}
}

func TestDetectRefusesWithReasons(t *testing.T) {
	tiny := Family().Tiny.(Config)
	axes := map[string]string{"config": `{"axes_dims_rope": [4, 4, 4, 4]}`}
	for _, c := range []struct {
		name  string // of a tensor that has another shape
		shape []int  // nil: it is missing, like the rest of its block
		meta  map[string]string
		want  string
	}{
		{"", nil, nil, "axes_dims_rope [] must be 4 sizes"},
		{"", nil, map[string]string{"config": `{`}, "metadata"},
		{"txt_mode_blocks.1.", nil, axes, "1 blocks in txt_mode_blocks and 2 in content_mode_blocks.image"},
		{"content_mode_blocks.image_cond.1.", nil, axes, "1 blocks in content_mode_blocks.image_cond and 2"},
		{"emb_in.image_cond.weight", []int{112, 64}, axes, "emb_in.image_cond.weight has 64"},
		{"final_layer.image.linear.weight", []int{64, 112}, axes, "final_layer.image.linear.weight has 64"},
		{"single_blocks.0.norm.key_norm.scale", []int{15}, axes, "head dim 15"},
	} {
		set := shapes(t, tiny)
		for name := range set {
			switch {
			case c.name == "" || !strings.HasPrefix(name, c.name):
			case c.shape == nil:
				delete(set, name)
			default:
				set[name] = weights.Stored{Shape: c.shape}
			}
		}
		if _, err := Detect(weights.FromMap(set), c.meta); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that says %q", c.name, err, c.want)
		}
	}
}

// TestTarget checks where a step leads to, at its start and between two timesteps.
func TestTarget(t *testing.T) {
	schedule := []float32{1, 0.75, 0.5, 0}
	for at, want := range map[float32]float32{
		1: 0.75, 0.9: 0.75, 0.75: 0.5, 0.7500001: 0.5, 0.5: 0, 0.1: 0, 0: 0,
	} {
		if got := target(schedule, at); got != want {
			t.Errorf("a step from %v leads to %v, want %v", at, got, want)
		}
	}
	if got := target(nil, 0.5); got != 0 {
		t.Errorf("without a schedule a step leads to %v, want 0", got)
	}
}

// TestSigmas checks the schedules of the default time line.
func TestSigmas(t *testing.T) {
	var all map[string]map[string]any
	if err := golden.JSON("flux3/sigmas.json", &all); err != nil {
		t.Fatal(err)
	}
	d, err := Family().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	line, err := d.Sampling.Build()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for name, byDenoise := range all {
		parts := strings.Split(name, "/")
		if parts[0] != "flux" || len(parts) != 3 {
			continue
		}
		steps, err := strconv.Atoi(parts[2])
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range byDenoise {
			denoise, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			got, err := sampling.KSamplerSigmas(line, "euler", parts[1], steps, denoise)
			if err != nil || len(got) != len(want.([]any)) {
				t.Fatalf("%s, denoise %s: got %v, %v; want %v", name, text, got, err, want)
			}
			for i, w := range want.([]any) {
				if !(math.Abs(float64(got[i])-w.(float64)) <= 5e-7) { // 8 units in the last place, as of sgm_uniform
					t.Errorf("%s, denoise %s: sigma %d is %v, want %v", name, text, i, got[i], w)
				}
			}
			checked++
		}
	}
	if checked < 18 {
		t.Errorf("checked %d schedules, want at least 18", checked)
	}
}
