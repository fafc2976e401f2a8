package text_test

import (
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/text"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestSigLIPAndReduxMatchComfyUI compares SigLIP on recorded pixels and Redux on recorded states with ComfyUI.
func TestSigLIPAndReduxMatchComfyUI(t *testing.T) {
	f, err := golden.Open("modern/control.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for name, ops := range backends(t) {
		set, config, err := goldenweights.Set("siglip-a")
		if err != nil {
			t.Fatal(err)
		}
		eyes, err := text.OpenSigLIP(ops, set, config)
		if err != nil {
			t.Fatal(err)
		}
		defer eyes.Close()
		for _, key := range []string{"siglip-a/44x44", "siglip-a/31x90-none", "siglip-a/20x30"} {
			got, _, err := eyes.See(env(t, ops), values(t, f, key+"#pixels"))
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name+" "+key, got, values(t, f, key), 2e-5)
		}
		if set, _, err = goldenweights.Set("redux-a"); err != nil {
			t.Fatal(err)
		}
		style, err := text.OpenRedux(ops, set)
		if err != nil {
			t.Fatal(err)
		}
		defer style.Close()
		got, err := style.Project(env(t, ops), golden.Input("redux-a/last_hidden_state", 9*28))
		if err != nil {
			t.Fatal(err)
		}
		compare(t, name+" redux-a/embeds", got, values(t, f, "redux-a/embeds"), 2e-5)
	}
}

// TestSigLIPNamesOtherFiles checks that the error for a file of another type says what the file is.
func TestSigLIPNamesOtherFiles(t *testing.T) {
	set, config, err := goldenweights.Set("siglip-a")
	if err != nil {
		t.Fatal(err)
	}
	const at = "vision_model.embeddings."
	for want, c := range map[string]struct {
		name  string
		shape []int // nil: left out
	}{
		"CLIP vision":          {"class_embedding", []int{28}},
		"variable sizes":       {"patch_embedding.weight", []int{28, 588}},
		"no picture encoder":   {"patch_embedding.bias", nil},
		"10 positions and":     {"position_embedding.weight", []int{10, 28}},
		"patch_embedding.bias": {"patch_embedding.bias", []int{4}},
	} {
		m := map[string]weights.Stored{}
		for _, n := range set.Names() {
			m[n], _ = set.Get(n)
		}
		m[at+c.name] = weights.Stored{Shape: c.shape}
		if c.shape == nil {
			delete(m, at+c.name)
		}
		if _, err := text.OpenSigLIP(ref.New(), weights.FromMap(m), config); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
	}
}
