package sdxl

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"patchbay/models/family"
	"patchbay/models/sampling"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

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

// TestReleasedSizes compares with the numbers of parameters that diffusers counts in the releases, and ComfyUI in the
// refiner.
func TestReleasedSizes(t *testing.T) {
	for _, k := range []struct {
		family family.Family
		params int64
	}{{Family(), 2_567_463_684}, {SD1(), 859_520_964}, {Refiner(), 2_259_526_660}} {
		d, err := k.family.Releases[0].Config.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := d.Spec
		if s.Params != k.params || !s.Whole || len(s.Blocks) != 1 || s.Blocks[0].Attends != 0 ||
			s.Tokens(9, 13).Tokens() != 117 {
			t.Errorf("%s: got %d parameters and %+v, want %d in one whole block", s.Family, s.Params, s.Blocks, k.params)
		}
	}
}

func TestDetectFindsTheConfig(t *testing.T) {
	all := []family.Family{Family(), SD1(), Refiner()}
	for _, f := range all {
		released := f.Releases[0].Config.(Config)
		inpaint, vpred, zsnr, plain := released, released, released, released
		inpaint.In, vpred.Prediction, zsnr.Prediction, zsnr.ZeroSNR = 9, v, v, true
		marked := []Config{vpred, zsnr}
		if f.Name != xl { // ComfyUI reads markers of XL alone
			marked = []Config{plain, plain}
		}
		for i, want := range append(marked, released, inpaint) {
			m := shapes(t, want)
			if i < len(marked) {
				m["v_pred"] = weights.Stored{Shape: []int{0}}
			}
			if i == 1 {
				m["ztsnr"] = weights.Stored{Shape: []int{0}}
			}
			set := weights.FromMap(m)
			if got, err := f.Detect(set, nil); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v, %v; want %+v", f.Name, got, err, want)
			}
			d, err := family.Open(all, set, nil)
			if err != nil || d.Spec.Family != f.Name || d.Spec.Concat != want.In-4 || len(d.Unused) > 0 {
				t.Fatalf("%s opens as %+v, %v", f.Name, d, err)
			}
			if line, err := d.Sampling.Build(); err != nil || line.SigmaMax() > 4000 != want.ZeroSNR ||
				line.Prediction() == sampling.V != (want.Prediction == v) {
				t.Errorf("%s, %s: the line ends at %v: %v", f.Name, want.Prediction, line.SigmaMax(), err)
			}
		}
	}
}

// TestMarkersThatCannotBe checks that continuous time lines of a file without usable ends are refused by name.
func TestMarkersThatCannotBe(t *testing.T) {
	for _, k := range []struct {
		low, high []float32
		want      string
	}{
		{nil, []float32{-1}, "sigmas from 0.002 to -1"},
		{nil, []float32{0}, "want 0 < sigma_min < sigma_max"},
		{nil, []float32{float32(math.NaN())}, "edm_vpred.sigma_max"},
		{[]float32{5}, []float32{5}, "sigmas from 5 to 5"},
		{nil, []float32{1, 2}, "edm_vpred.sigma_max has the shape [2]: want one number"},
		{[]float32{}, []float32{80}, "edm_vpred.sigma_min has the shape [0]"},
	} {
		m := shapes(t, Family().Releases[0].Config.(Config))
		m[markSigmaMax] = weights.Floats(k.high, len(k.high))
		if k.low != nil {
			m[markSigmaMin] = weights.Floats(k.low, len(k.low))
		}
		_, err := family.Open([]family.Family{Family()}, weights.FromMap(m), nil)
		if err == nil || !strings.Contains(err.Error(), k.want) {
			t.Errorf("%v to %v: got %v, want %q", k.low, k.high, err, k.want)
		}
	}
}

// TestDetectFindsTheRefiner compares the released sizes with the names and shapes of the network that ComfyUI takes for
// the refiner.
func TestDetectFindsTheRefiner(t *testing.T) {
	var recorded struct {
		Released struct {
			Class   string
			Tensors map[string][]int
		}
	}
	if err := golden.JSON("refiner/models.json", &recorded); err != nil {
		t.Fatal(err)
	}
	m := map[string]weights.Stored{}
	for name, shape := range recorded.Released.Tensors {
		m["model.diffusion_model."+name] = weights.Stored{Shape: shape}
	}
	d, err := family.Open([]family.Family{Family(), SD1(), Refiner()}, weights.FromMap(m), nil)
	if err != nil || recorded.Released.Class != "SDXLRefiner" || d.Spec.Family != refiner || len(d.Unused) > 0 {
		t.Fatalf("opens %s as %+v, %v", recorded.Released.Class, d, err)
	}
	declared, err := d.Declare()
	if err != nil || len(declared) != len(m) {
		t.Errorf("declares %d tensors of %d: %v", len(declared), len(m), err)
	}
	got, err := Refiner().Detect(weights.FromMap(m).Prefix("model.diffusion_model."), nil)
	if want := Refiner().Releases[0].Config; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if s := d.Spec; s.PooledDim != 1280 || s.ContextDim != 1280 || s.Heads != 6 {
		t.Errorf("reads a pooled text of %d values, one of %d, and has %d heads", s.PooledDim, s.ContextDim, s.Heads)
	}
}

func TestDetectRefusesWithReasons(t *testing.T) {
	released, one := Family().Releases[0].Config.(Config), SD1().Releases[0].Config.(Config)
	second, cut, pix, unclip := one, released, one, Refiner().Releases[0].Config.(Config)
	second.Linear, second.ContextDim = true, 1024
	cut.VectorDim = 6 * features
	pix.In = 8
	unclip.Down, unclip.Up = []int{1, 1, 1, 1, 1, 1, 0, 0}, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0}
	for _, k := range []struct {
		config Config
		meta   string
		want   string
	}{
		{second, "", "Stable Diffusion 2"},
		{cut, "", "vectors of 1536 values"},
		{unclip, "", "transformers in the first block: 1: this is Stable Diffusion 2"},
		{pix, "", "reads 8 channels and writes 4"},
		{one, `{"num_heads": 7}`, "7 heads"},
		{released, `{"num_head_channels": "x"}`, "metadata"},
	} {
		meta := map[string]string{}
		if k.meta != "" {
			meta["config"] = k.meta
		}
		_, err := family.Open([]family.Family{Family(), SD1(), Refiner()}, weights.FromMap(shapes(t, k.config)),
			meta)
		if err == nil || !strings.Contains(err.Error(), k.want) {
			t.Errorf("got %v, want %q", err, k.want)
		}
	}
}

// TestNamesOfDiffusers checks every name of diffusers that was recorded for the golden models, and that no name of a
// file is left over.
func TestNamesOfDiffusers(t *testing.T) {
	for name, f := range map[string]family.Family{"sdxl-a": Family(), "sd15-a": SD1(), "refiner-a": Refiner()} {
		table := recordedNames(t, "diffusers_to_original/"+name)
		m := map[string]weights.Stored{}
		own := goldenShapes(t, name)
		for file, as := range table {
			if s, ok := own[as]; ok && !strings.HasPrefix(file, "class_embedding.") {
				m[file] = s
			}
		}
		if len(m) < len(own)-2 {
			t.Fatalf("%s: the recorded names are of %d tensors, the model has %d", name, len(m), len(own))
		}
		got, err := weights.Renamed(weights.FromMap(m), f.Names.Diffusers)
		if err != nil {
			t.Fatal(err)
		}
		for file := range m {
			if as := table[file]; !got.Has(as) {
				t.Errorf("%s: %s is not read as %s", name, file, as)
			}
		}
		meta := map[string]string{"config": `{"num_head_channels": 16}`}
		d, err := family.Open([]family.Family{Family(), SD1(), Refiner()}, weights.FromMap(m), meta)
		if err != nil || d.Spec.Family != f.Name || len(d.Unused) > 0 {
			t.Errorf("%s: opens as %+v, %v", name, d, err)
		}
	}
}
