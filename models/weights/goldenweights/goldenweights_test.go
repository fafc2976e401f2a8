package goldenweights

import (
	"bytes"
	"testing"

	"patchbay/models/weights"
)

// TestSeedFollowsTheRecordedRule checks that Seed gives the tensors of the recorded models of every family that uses
// it.
func TestSeedFollowsTheRecordedRule(t *testing.T) {
	for _, name := range []string{"flux-c", "sd3-c", "pixart-a", "hydit-b", "vae-kl", "bert-tiny"} {
		set, config, err := Set(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(config) == 0 {
			t.Errorf("%s: no config", name)
		}
		var declared []weights.Declared
		for _, n := range set.Names() {
			declared = append(declared, weights.Declared{Name: n, Shape: set.Shape(n)})
		}
		seeded := Seed(name, declared)
		for _, n := range set.Names() {
			want, _ := set.Get(n)
			got, _ := seeded.Get(n)
			if !bytes.Equal(got.Data, want.Data) {
				t.Fatalf("%s/%s: seeded values differ from the recorded ones", name, n)
			}
		}
	}
	if _, _, err := Set("nobody"); err == nil {
		t.Error("an unknown model gave a set")
	}
}
