package flux

import (
	"reflect"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

// TestReleasedSizes compares parameter counts with those of Black Forest Labs' files on the model hub.
func TestReleasedSizes(t *testing.T) {
	c := Config{
		Hidden: 3072, Heads: 24, Depth: 19, DepthSingle: 38, Axes: []int{16, 56, 56}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2,
		ContextDim: 4096, VectorDim: 768, Guidance: true, MLPHidden: 12288,
	}
	for want, guidance := range map[int64]bool{11901408320: true, 11891178560: false} {
		c.Guidance = guidance
		d, err := c.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := d.Spec
		if s.Params != want || len(s.Blocks) != 57 || s.HeadDim != 128 || !s.JointText() {
			t.Errorf("guidance %v: got %d parameters, %d blocks, head dim %d; want %d, 57, 128", guidance, s.Params,
				len(s.Blocks), s.HeadDim, want)
		}
	}
}

// shapes returns a set of a config's tensors with names and shapes but without data.
func shapes(t *testing.T, c Config, prefix string) *weights.Set {
	t.Helper()
	declared, err := declare(c)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]weights.Stored{}
	for _, d := range declared {
		m[prefix+d.Name] = weights.Stored{Shape: d.Shape}
	}
	return weights.FromMap(m)
}

func TestDetectFindsTheConfig(t *testing.T) {
	dev := Config{
		Hidden: 3072, Heads: 24, Depth: 3, DepthSingle: 2, Axes: []int{16, 56, 56}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2,
		ContextDim: 4096, VectorDim: 768, Guidance: true, MLPHidden: 12288,
	}
	for _, prefix := range []string{"", "model.diffusion_model."} {
		got, err := Detect(shapes(t, dev, prefix).Prefix(prefix), nil)
		if err != nil || !reflect.DeepEqual(got, dev) {
			t.Errorf("prefix %q: got %+v, %v; want %+v", prefix, got, err, dev)
		}
	}
	for _, more := range []int{16, 80} { // Canny and Depth, Fill
		want := dev
		want.Concat = more
		if got, err := Detect(shapes(t, want, ""), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d channels more: got %+v, %v; want %+v", more, got, err, want)
		}
	}
	small := tiny()
	meta := map[string]string{"config": `{"in_channels": 64, "axes_dim": [4, 6, 6], "theta": 20000, "time_factor": ` +
		`500, "num_heads": 6}`}
	small.Theta, small.TimeFactor = 20000, 500
	if got, err := Detect(shapes(t, small, ""), meta); err != nil || !reflect.DeepEqual(got, small) {
		t.Errorf("with metadata: got %+v, %v; want %+v", got, err, small)
	}
}

// TestNormsCalledWeight checks that a model loads with its norms under the names that newer versions of ComfyUI save.
func TestNormsCalledWeight(t *testing.T) {
	declared, err := declare(tiny())
	if err != nil {
		t.Fatal(err)
	}
	set := goldenweights.Seed("tiny", declared)
	renamed := map[string]weights.Stored{}
	for _, name := range set.Names() {
		w, _ := set.Get(name)
		renamed[strings.Replace(name, "_norm.scale", "_norm.weight", 1)] = w
	}
	config := map[string]string{"config": `{"axes_dim": [4, 6, 6]}`}
	d, err := family.Open([]family.Family{Family()}, weights.FromMap(renamed), config)
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Load(ref.New(), dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
}

func TestDetectRefusesWithReasons(t *testing.T) {
	fill := shapes(t, tiny(), "")
	wide := map[string]weights.Stored{}
	for _, n := range fill.Names() {
		s, _ := fill.Get(n)
		wide[n] = s
	}
	wide["img_in.weight"] = weights.Stored{Shape: []int{192, 256}}
	config := map[string]string{"config": `{"axes_dim": [4, 6, 6]}`}
	for _, c := range []struct {
		set  *weights.Set
		meta map[string]string
		want string
	}{
		{fill, nil, "axes_dim"},
		{fill, map[string]string{"config": `{"axes_dim": [9, 11, 12]}`}, "even"},
		{fill, map[string]string{"config": `{"patch_size": 0, "axes_dim": [4, 6, 6]}`}, "patch_size"},
		{fill, map[string]string{"config": `{`}, "metadata"},
		{weights.FromMap(wide), config, "Fill"},
	} {
		if _, err := Detect(c.set, c.meta); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}

func TestPrepareNamesTheWrongField(t *testing.T) {
	c := tiny()
	declared, err := declare(c)
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.Describe(goldenweights.Seed("tiny-flux", declared))
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Load(ref.New(), dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	env, err := goldenrun.NewEnv(ref.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Prepare(env, []dit.Entry{{Context: dit.Array{Rows: 2, Cols: 41, Data: make([]float32, 82)}}},
		m.Spec().Tokens(8, 8))
	if err == nil || !strings.Contains(err.Error(), "context has 41 columns, want 40") {
		t.Errorf("got error %v", err)
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
