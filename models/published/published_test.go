package published

import (
	"math"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
)

// TestParameterCounts compares the parameter counts of the configs with those of the released files
// (family.Release.Billions).
func TestParameterCounts(t *testing.T) {
	for _, name := range Names() {
		m, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		got := float64(m.Spec.Params) / 1e9
		if bound := 0.02 * m.Billions; m.Billions == 0 || !(math.Abs(got-m.Billions) <= bound) {
			t.Errorf("%s: %.3f billion parameters, want %.2f within %.2f", name, got, m.Billions, bound)
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
