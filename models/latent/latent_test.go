package latent_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"patchbay/models"
	"patchbay/models/latent"
	"patchbay/tests/golden"
)

// TestFormatsMatchComfyUI compares scale, shift and channels with what ComfyUI reported for each family.
func TestFormatsMatchComfyUI(t *testing.T) {
	var all map[string]json.RawMessage
	if err := golden.JSON("sigmas.json", &all); err != nil {
		t.Fatal(err)
	}
	for key, model := range map[string]string{
		"flux_dev": "flux-dev", "flux_schnell": "flux-schnell", "sd3": "sd3-medium", "pixart_alpha": "pixart-alpha",
		"pixart_sigma": "pixart-sigma", "hunyuandit12": "hunyuandit",
	} {
		var want struct {
			Channels int      `json:"latent_channels"`
			Scale    float32  `json:"latent_scale"`
			Shift    *float32 `json:"latent_shift"`
		}
		if err := json.Unmarshal(all[key+"/conversions"], &want); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		f := released(t, model)
		shift := float32(0)
		if want.Shift != nil {
			shift = *want.Shift
		}
		if f.Channels != want.Channels || f.Scale != want.Scale || f.Shift != shift {
			t.Errorf("%s: got %d channels, scale %g, shift %g; want %d, %g, %g", model, f.Channels, f.Scale, f.Shift,
				want.Channels, want.Scale, shift)
		}
		if len(f.Preview) != f.Channels {
			t.Errorf("%s: %d rows of preview factors for %d channels", model, len(f.Preview), f.Channels)
		}
	}
}

// released returns the latent format of a released model.
func released(t *testing.T, name string) latent.Format {
	t.Helper()
	for _, f := range models.Families() {
		for _, r := range f.Releases {
			if r.Name != name {
				continue
			}
			d, err := r.Config.Describe(nil)
			if err != nil {
				t.Fatal(err)
			}
			return d.Latent
		}
	}
	t.Fatalf("%s is not released", name)
	return latent.Format{}
}

func TestThereAndBack(t *testing.T) {
	f := latent.FLUX()
	v := []float32{0, 0.1159, -3, 7.5}
	f.ToModel(v, 1)
	for i, want := range []float64{-0.1159 * 0.3611, 0, (-3 - 0.1159) * 0.3611, (7.5 - 0.1159) * 0.3611} {
		if !(math.Abs(float64(v[i])-want) <= 1e-6) {
			t.Errorf("model value %d: got %g, want %g", i, v[i], want)
		}
	}
	f.FromModel(v, 1)
	for i, want := range []float64{0, 0.1159, -3, 7.5} {
		if !(math.Abs(float64(v[i])-want) <= 1e-6) {
			t.Errorf("value %d there and back: got %g, want %g", i, v[i], want)
		}
	}
}

// TestLaterFormats compares the conversion of latents of Wan 2.1 and FLUX.2, in both directions, with ComfyUI's values.
func TestLaterFormats(t *testing.T) {
	f, err := golden.Open("modern/vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, c := range []struct {
		key    string
		format latent.Format
		plane  int
	}{{"latent_format/Wan21/0", latent.Wan21(), 2 * 3}, {"latent_format/Flux2/1", latent.FLUX2(), 2 * 2}} {
		for name, convert := range map[string]func([]float32, int){"in": c.format.ToModel, "out": c.format.FromModel} {
			e, ok := f.Entry(c.key + "#" + name)
			if !ok {
				t.Fatalf("%s#%s is not recorded", c.key, name)
			}
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			got := golden.Input(c.key, c.format.Channels*c.plane)
			convert(got, c.plane)
			for i := range want {
				if !(math.Abs(float64(got[i]-want[i])) <= 1e-6*max(1, math.Abs(float64(want[i])))) {
					t.Fatalf("%s %s: value %d: got %g, want %g", c.key, name, i, got[i], want[i])
				}
			}
		}
	}
}

func TestWithConfig(t *testing.T) {
	for _, c := range []struct {
		config string
		scale  float32
		shift  float32
		err    string
	}{
		{``, 0.3611, 0.1159, ""},
		{`{}`, 0.3611, 0.1159, ""},
		{`null`, 0.3611, 0.1159, ""},
		{`{"scale_factor": 0.5728, "shift_factor": 0.0275, "z_channels": 16}`, 0.5728, 0.0275, ""},
		{`{"latent_scale_factor": 0.5, "latent_shift_factor": 0, "latent_channels": 16}`, 0.5, 0, ""},
		{`{"shift_factor": -2}`, 0.3611, -2, ""},
		{`{"scale_factor": 0}`, 0, 0, "scale_factor is 0"},
		{`{"scale_factor": -1}`, 0, 0, "must be a positive number"},
		{`{"z_channels": 4}`, 0, 0, "z_channels is 4, latents of flux have 16"},
		{`{"latent_scale_factor": -1}`, 0, 0, "latent_scale_factor is -1"},
		{`{"z_channels": 16, "latent_channels": 4}`, 0, 0, "latent_channels is 4, latents of flux have 16"},
		{`{"scale_factor": "big"}`, 0, 0, "scale_factor"},
		{`[`, 0, 0, "latent config"},
	} {
		f, err := latent.FLUX().WithConfig([]byte(c.config))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want one with %q", c.config, err, c.err)
			}
			continue
		}
		if err != nil || f.Scale != c.scale || f.Shift != c.shift {
			t.Errorf("%s: got scale %g, shift %g, %v; want %g, %g", c.config, f.Scale, f.Shift, err, c.scale, c.shift)
		}
	}
}

// TestRGB checks an image calculated by hand, and the clamp at both ends.
func TestRGB(t *testing.T) {
	f := latent.Format{Channels: 2, Preview: [][3]float32{{1, 0, 0.5}, {0, 2, 0}}, Bias: [3]float32{0, 0.5, 0}}
	got := f.RGB([]float32{0.5, -9, 9, 0 /**/, 0.25, 0, -9, 9}, 2, 2)
	want := []byte{191, 255, 159, 0, 191, 0, 255, 0, 255, 127, 255, 127}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("byte %d: got %v, want %v", i, got, want)
		}
	}
	packed := latent.Format{Channels: 4, Packed: 2, Preview: [][3]float32{{1, 0, 0}}}
	got = packed.RGB([]float32{-1, 0 /**/, 1, 0.5 /**/, -0.5, 0.25 /**/, 0, -1}, 1, 2)
	for i, want := range []byte{0, 255, 127, 191, 63, 127, 159, 0} { // rows of four pixels
		if got[3*i] != want {
			t.Fatalf("packed: pixel %d: got %d, want %d", i, got[3*i], want)
		}
	}
	if none := (latent.Format{Channels: 1}).RGB([]float32{1}, 1, 1); none != nil {
		t.Errorf("a format without factors gave %v", none)
	}
}
