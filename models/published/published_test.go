package published

import (
	"math"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
)

// TestParameterCounts compares the parameter counts of the configs with those of the released files, in billions: FLUX
// 11.9 (its model card says 12), SD3 medium 2.0 and 3.5 large 8.1 (with the position table), PixArt 0.6, HunyuanDiT 1.5
// (model cards).
func TestParameterCounts(t *testing.T) {
	want := map[string]float64{
		"flux-dev": 11.90, "flux-schnell": 11.89, "sd3-medium": 2.08, "sd3.5-large": 8.14, "pixart-alpha": 0.61,
		"pixart-sigma": 0.61, "hunyuandit": 1.5, "z-image-turbo": 6.15, "qwen-image": 20.43, "qwen-image-layered": 20.43,
		"flux2-klein-4b": 3.88, "flux2-klein-9b": 9.08, "flux2-dev": 32.22, "krea2-turbo": 12.82,
		"chroma1-hd": 8.90, "lumina-image-2": 2.61, "auraflow-0.3": 6.88,
	}
	for _, name := range Names() {
		m, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		got := float64(m.Spec.Params) / 1e9
		if bound := 0.02 * want[name]; !(math.Abs(got-want[name]) <= bound) {
			t.Errorf("%s: %.3f billion parameters, want %.2f within %.2f", name, got, want[name], bound)
		}
	}
}

// TestUnknownName checks that the error for an unknown name lists the known ones.
func TestUnknownName(t *testing.T) {
	_, err := Find("flux")
	if err == nil || !strings.Contains(err.Error(), "flux-dev") {
		t.Errorf("got %v, want an error that lists flux-dev", err)
	}
}

// TestRandom checks that Random provides the declared tensors of every release and of small models, in bf16, with the
// parameter count of the config.
func TestRandom(t *testing.T) {
	for _, name := range append(Names(), "flux", "sd3") {
		d, r, err := Random(name)
		if err != nil {
			t.Fatal(err)
		}
		if r.Text < 1 || r.Entries < 1 {
			t.Errorf("%s: %d text tokens, %d entries", name, r.Text, r.Entries)
		}
		if m, err := Find(name); err == nil && m.Spec.Params != d.Spec.Params {
			t.Errorf("%s: %d parameters, want %d", name, d.Spec.Params, m.Spec.Params)
		}
	}
	d, _, err := Random("flux")
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Load(ref.New(), dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if _, _, err := Random("nix"); err == nil || !strings.Contains(err.Error(), "flux-dev") {
		t.Errorf("got %v, want an error that lists flux-dev", err)
	}
}
