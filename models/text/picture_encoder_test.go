package text_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
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
		eyes, err := text.OpenPictureEncoder(ops, set, config, 0)
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

// TestCLIPVisionMatchesComfyUI compares the states before and after the last layer with ComfyUI, also of files with
// OpenCLIP's names. Encoders of released widths run as those releases do.
func TestCLIPVisionMatchesComfyUI(t *testing.T) {
	f, err := golden.Open("wan/clip_vision.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, c := range []struct{ model, picture string }{
		{"clipvision-a", "same"},
		{"clipvision-b", "seen"},
		{"clipvision-l", "small"},
		{"clipvision-h", "small"},
		{"clipvision-g", "small"},
	} {
		set, config, err := goldenweights.Set(c.model)
		if err != nil {
			t.Fatal(err)
		}
		forms := map[string]*weights.Set{"transformers": set}
		if c.picture == "small" { // those of releases have no metadata
			config = nil
		} else {
			forms["OpenCLIP"] = openCLIPNames(t, set)
		}
		all := backends(t)
		if config == nil { // large matrices of the same operations
			fast, name := fastest(nativeBackends(t))
			all = map[string]engine.Ops{name: fast}
		}
		for name, ops := range all {
			for names, set := range forms {
				eyes, err := text.OpenPictureEncoder(ops, set, config, 0)
				if err != nil {
					t.Fatalf("%s, names of %s: %v", c.model, names, err)
				}
				n := eyes.Size
				image := golden.Fill("input:clip_vision/"+c.picture, n*n*3, 1, 0.5)
				pixels := make([]float32, len(image))
				for i := range pixels {
					k := i / (n * n)
					level := math.RoundToEven(float64(255 * image[i%(n*n)*3+k]))
					pixels[i] = (float32(level)/255 - eyes.Mean[k]) / eyes.Deviation[k]
				}
				last, deep, err := eyes.See(env(t, ops), pixels)
				if err != nil {
					t.Fatal(err)
				}
				key := c.model + "/" + c.picture
				compare(t, name+" "+key, last, values(t, f, key), 2e-5)
				compare(t, name+" "+key, deep, values(t, f, key+"#penultimate"), 2e-5)
				eyes.Close()
			}
		}
	}
}

// openCLIPNames returns a picture encoder under the names of OpenCLIP, with one matrix for queries, keys and values.
func openCLIPNames(t *testing.T, set *weights.Set) *weights.Set {
	t.Helper()
	out := map[string]weights.Stored{"visual.proj": weights.Floats([]float32{1}), "logit_scale": weights.Floats(nil, 0)}
	names := strings.NewReplacer("vision_model.embeddings.patch_embedding.", "conv1.", "vision_model.embeddings.", "",
		"position_embedding.weight", "positional_embedding", "vision_model.pre_layrnorm", "ln_pre",
		"vision_model.post_layernorm", "ln_post", "vision_model.encoder.layers", "transformer.resblocks",
		"layer_norm", "ln_", "fc1", "c_fc", "fc2", "c_proj", "self_attn.out_proj", "attn.out_proj")
	for _, n := range set.Names() {
		s, _ := set.Get(n)
		layer, end, fused := strings.Cut(n, ".self_attn.q_proj.")
		switch {
		case fused:
			shape, values := slices.Clone(s.Shape), []float32{}
			shape[0] *= 3
			for _, of := range []string{"q", "k", "v"} {
				s, _ := set.Get(layer + ".self_attn." + of + "_proj." + end)
				values = append(values, s.F32()...)
			}
			out["visual."+names.Replace(layer)+".attn.in_proj_"+end] = weights.Floats(values, shape...)
		case strings.HasPrefix(n, "vision_model.") && !strings.Contains(n, "k_proj") && !strings.Contains(n, "v_proj"):
			out["visual."+names.Replace(n)] = s
		}
	}
	return weights.FromMap(out)
}

// TestPictureEncodersNameOtherFiles checks that the error for a file of another type says what the file is.
func TestPictureEncodersNameOtherFiles(t *testing.T) {
	set, config, err := goldenweights.Set("siglip-a")
	if err != nil {
		t.Fatal(err)
	}
	const at = "vision_model.embeddings."
	for want, c := range map[string]struct {
		name  string
		shape []int // nil: left out
	}{
		"9 positions and":      {"class_embedding", []int{28}},
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
		if _, err := text.OpenPictureEncoder(ref.New(), weights.FromMap(m), config, 0); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
	}
	if set, _, err = goldenweights.Set("clipvision-a"); err != nil {
		t.Fatal(err)
	}
	const want = "width 40, want 1024 (ViT-L/14), 1280 (ViT-H/14, clip_vision_h) or 1664 (ViT-bigG/14)"
	if _, err := text.OpenPictureEncoder(ref.New(), set, nil, 0); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a width that no release has: got %v, want an error that says %q", err, want)
	}
	m := map[string]weights.Stored{}
	for _, n := range set.Names() {
		if s, _ := set.Get(n); !strings.Contains(n, ".layers.") {
			m[n] = s
		}
	}
	config = []byte(`{"num_attention_heads": 2}`)
	if _, err := text.OpenPictureEncoder(ref.New(), weights.FromMap(m), config, 0); err == nil ||
		!strings.Contains(err.Error(), "has no layers") {
		t.Errorf("no layers: got %v", err)
	}
}
