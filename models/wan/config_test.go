package wan

import (
	"encoding/json"
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

// TestReleasedSize counts the parameters of the releases by hand.
func TestReleasedSize(t *testing.T) {
	linear := func(n, k int) int64 { return int64(n)*int64(k) + int64(n) }
	for _, r := range Family().Releases {
		c := r.Config.(Config)
		e, f := c.Hidden, c.MLPHidden
		attention := 4*linear(e, e) + 2*int64(e)
		block := int64(6*e) + 2*attention + 2*int64(e) + linear(f, e) + linear(e, f)
		ends := linear(e, 4*c.In) + linear(e, 4096) + linear(e, e) + linear(e, 256) + linear(e, e) + linear(6*e, e) +
			int64(2*e) + linear(4*c.Channels, e)
		if c.VisionDim > 0 {
			block += 2*linear(e, e) + int64(e)
			ends += 2*1280 + linear(1280, 1280) + linear(e, 1280) + 2*int64(e) + int64(c.PictureRows)*1280
		}
		d, err := c.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		want := int64(c.Depth)*block + ends
		if s := d.Spec; s.Params != want || s.Blocks[1].Params != block || s.HeadDim != 128 || s.JointText() {
			t.Errorf("%s: got %d parameters, %d in a block, heads of %d; want %d, %d, 128", r.Name, s.Params, s.Blocks[1].Params,
				s.HeadDim, want, block)
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
	for _, r := range Family().Releases {
		want := r.Config.(Config)
		if got, err := Detect(weights.FromMap(tensors(t, want)), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", r.Name, got, err, want)
		}
	}
	for _, c := range []struct {
		name, meta, want string
		shape            []int
	}{
		{"vace_patch_embedding.weight", "", "VACE", []int{1}},
		{"control_adapter.conv.weight", "", "Fun Camera", []int{1}},
		{"patch_embedding.weight", "", "reads 48 channels and the head writes 16", []int{5120, 48, 1, 2, 2}},
		{"patch_embedding.weight", "", "width 5000 is not a multiple of 128", []int{5000, 16, 1, 2, 2}},
		{"", `{"num_heads": 0`, "metadata", nil},
	} {
		set, meta := tensors(t, Family().Releases[1].Config.(Config)), map[string]string{}
		if c.name != "" {
			set[c.name] = weights.Stored{Shape: c.shape}
		} else {
			meta["config"] = c.meta
		}
		if _, err := Detect(weights.FromMap(set), meta); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: got %v, want an error with %q", c.name, c.shape, err, c.want)
		}
	}
}

// TestDiffusersNames checks that a file with the names of diffusers gives the model of the original ones.
func TestDiffusersNames(t *testing.T) {
	tiny := Family().Tiny.(Config)
	original, theirNames := tensors(t, tiny), map[string]weights.Stored{}
	list := names().Diffusers
	for name, s := range original {
		module, part := name, ""
		for _, end := range []string{".weight", ".bias"} {
			if m, ok := strings.CutSuffix(name, end); ok {
				module, part = m, end
			}
		}
		for _, a := range list {
			head, tail, starred := strings.Cut(a.Own, "*")
			rest, ok := strings.CutPrefix(module, head)
			number, fits := strings.CutSuffix(rest, tail)
			if ok && fits && (starred && !strings.Contains(number, ".") || !starred && number == "") {
				module = strings.Replace(a.File, "*", number, 1)
				break
			}
		}
		theirNames[module+part] = s
	}
	if _, ok := theirNames["blocks.0.attn2.add_k_proj.weight"]; !ok || len(theirNames) != len(original) {
		t.Fatalf("%d names of %d tensors", len(theirNames), len(original))
	}
	text, err := json.Marshal(tiny)
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]string{"config": string(text)}
	d, err := family.Open([]family.Family{Family()}, weights.FromMap(theirNames), config)
	if err != nil || len(d.Unused) > 0 {
		t.Fatalf("unused %v: %v", d.Unused, err)
	}
}

// TestEntriesThatDoNotFit checks the refusals of Prepare.
func TestEntriesThatDoNotFit(t *testing.T) {
	set, config, err := goldenweights.Set("wan-i2v21-a")
	if err != nil {
		t.Fatal(err)
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
	text := dit.Array{Rows: 2, Cols: 4096, Data: make([]float32, 2*4096)}
	beside := dit.Reference{Y: 8, X: 4, Data: make([]float32, 20*32)}
	for _, c := range []struct {
		e    dit.Entry
		want string
	}{
		{dit.Entry{Context: text}, "0 concatenated values"},
		{dit.Entry{Context: text, Concat: beside, Frames: []float32{0}}, "timesteps of 1 frames, want those of 2"},
		{
			dit.Entry{Context: text, Concat: beside, Vision: dit.Array{Rows: 1, Cols: 3, Data: make([]float32, 3)}},
			"picture has 3 columns, want 1280",
		},
	} {
		if _, err := m.Prepare(env, []dit.Entry{c.e}, m.Spec().FrameTokens(2, 8, 4)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}
