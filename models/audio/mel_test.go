package audio_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/audio"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// mels are the golden autoencoders of LTX-2's kind.
func mels() []string { return []string{"ltxaudio-a", "ltxaudio-b", "ltxaudio-c"} }

func openMel(t testing.TB, ops engine.Ops, model string) *audio.VAE {
	t.Helper()
	set, config, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	v, err := audio.Open(ops, set, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

// recordedSound is what tests/golden/ltx/audio.json says of a case.
type recordedSound struct {
	Shape []int
	Rate  int
}

// TestMelsGolden compares sounds of one and two channels that ComfyUI decodes with HiFi-GAN and with one and two
// BigVGANs, and latents that it encodes.
func TestMelsGolden(t *testing.T) {
	f, err := golden.Open("ltx/audio.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var recorded map[string]recordedSound
	if err := golden.JSON("ltx/audio.json", &recorded); err != nil {
		t.Fatal(err)
	}
	checked := 0
	quick := fastest(t).Name()
	for name, ops := range backends(t) {
		for _, model := range mels() {
			v := openMel(t, ops, model)
			for key, r := range recorded {
				at, size, _ := strings.Cut(key, "/decode/")
				encodes := false
				if at != model {
					at, size, encodes = strings.Cut(key, "/encode/")
				}
				var channels, n, rate int
				if encodes {
					_, err = fmt.Sscanf(size, "%dx%dx%d", &channels, &n, &rate)
				} else if at == model {
					_, err = fmt.Sscan(size, &n)
				}
				if at != model || encodes && (rate != v.Config.Rate || n%v.Config.Step != 0) || name != quick && n > 4096 {
					continue // the nodes cut sounds; the convolutions are those of other cases
				}
				if err != nil {
					t.Fatal(err)
				}
				e, _ := f.Entry(key)
				want, err := e.F32()
				if err != nil {
					t.Fatal(err)
				}
				checked++
				var got []float32
				var shape []int
				env := audio.Env{Ops: ops}
				if encodes {
					wave := golden.Fill(fmt.Sprintf("input:%s/wave/%dx%d", model, channels, n), channels*n, 1, 0)
					got, err = v.Encode(env, wave, channels, n)
					y, x := v.Config.Latent(channels, n)
					shape = []int{1, v.Config.Channels, y, x}
				} else {
					got, err = v.Decode(env, golden.Input(model+"/latent/"+size, v.Config.Channels*n*16), n, 16)
					c, samples, _ := v.Config.Sound(n, 16)
					if shape = []int{1, c, samples}; v.Config.Out != r.Rate {
						t.Errorf("%s: %d samples a second, want %d", key, v.Config.Out, r.Rate)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(shape, r.Shape) {
					t.Errorf("%s: shape %v, want %v", key, shape, r.Shape)
				}
				compare(t, name+" "+key, got, want)
			}
		}
	}
	if checked < 10 {
		t.Errorf("%d cases were compared, want all 10 on the fastest backend", checked)
	}
}

// without returns a golden autoencoder without the tensors whose names have a suffix, and its config with words
// replaced by others.
func without(t *testing.T, model, suffix string, pairs ...string) (*weights.Set, []byte) {
	t.Helper()
	set, config, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]weights.Stored{}
	for _, name := range set.Names() {
		if suffix == "" || !strings.HasSuffix(name, suffix) {
			out[name], _ = set.Get(name)
		}
	}
	text := strings.NewReplacer(pairs...).Replace(string(config))
	if len(pairs) > 0 && text == string(config) {
		t.Fatalf("%s has no %s", config, pairs[0])
	}
	return weights.FromMap(out), []byte(text)
}

// TestMelsRefused checks that files of other kinds and damaged ones are refused by what is wrong with them.
func TestMelsRefused(t *testing.T) {
	ops := fastest(t)
	for _, c := range []struct {
		model, suffix string
		pairs         []string
		want          string
	}{
		{"ltxaudio-a", "", []string{`"audio_vae"`, `"audio"`}, "no config with the members audio_vae and vocoder"},
		{"ltxaudio-a", "", []string{`"vocoder"`, `"voice"`}, "no config with the members audio_vae and vocoder"},
		{"ltxaudio-a", "", []string{`"pixel"`, `"group"`}, `norm_type is "group": want pixel`},
		{"ltxaudio-a", "", []string{`"height"`, `"width"`}, `causality_axis is "width": want height`},
		{
			"ltxaudio-a", "",
			[]string{`attention":false`, `attention":true`, `attention": false`, `attention": true`},
			"mid_block_add_attention is true",
		},
		{
			"ltxaudio-a", "",
			[]string{`"resblock": "1"`, `"resblock": "2"`, `"resblock":"1"`, `"resblock":"2"`},
			`resblock is "2": want 1 or AMP1`,
		},
		{"ltxaudio-a", "", []string{`"ch": 8`, `"ch": 16`, `"ch":8`, `"ch":16`}, "want [16,"},
		{"ltxaudio-a", "", []string{`[16, 15,`, `[17, 15,`, `[16,15,`, `[17,15,`}, "17 taps for 6 samples"},
		{
			"ltxaudio-a", "",
			[]string{`"stereo": true`, `"stereo": false`, `"stereo":true`, `"stereo":false`},
			"stereo is false for spectrograms of 2 channels",
		},
		{
			"ltxaudio-b", "",
			[]string{`"hop_length": 4`, `"hop_length": 5`, `"hop_length":4`, `"hop_length":5`},
			"bwe: from 16000 to 48000",
		},
		{"ltxaudio-b", "", []string{
			`"filter_length": 1024`, `"filter_length": 8192`, `"filter_length":1024`,
			`"filter_length":8192`,
		}, "which have 8192: want an even number from that between rows to 4096"},
		{"ltxaudio-b", "", []string{`"n_fft": 32`, `"n_fft": 8192`, `"n_fft":32`, `"n_fft":8192`}, "samples and have 8192"},
		{"ltxaudio-b", "stft_fn.forward_basis", nil, "wide.basis"},
		{"ltxaudio-b", "bwe_generator.act_post.act.beta", nil, "activation_post.act.beta has 0 values, want 4"},
		{"ltxaudio-b", ".std-of-means", nil, "0 deviations of latents, want 128"},
		{"ltxaudio-c", "decoder.conv_in.conv.weight", nil, "decoder.conv_in.conv"},
	} {
		set, config := without(t, c.model, c.suffix, c.pairs...)
		v, err := audio.Open(ops, set, config)
		if err == nil {
			v.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s %v: got %v, want %q", c.model, c.suffix, c.pairs, err, c.want)
		}
	}
	for _, model := range mels() {
		set, config, err := goldenweights.Set(model)
		if err != nil {
			t.Fatal(err)
		}
		if unused := audio.Unused(set, config); len(unused) > 0 || !audio.Is(set) {
			t.Errorf("%s: not used: %v", model, unused)
		}
	}
	v := openMel(t, ops, "ltxaudio-a")
	if _, err := v.Decode(audio.Env{Ops: ops}, make([]float32, 8*15), 1, 15); err == nil {
		t.Error("a latent of 15 columns is decoded")
	}
	if _, err := v.Encode(audio.Env{Ops: ops}, make([]float32, 1000), 1, 1000); err == nil {
		t.Error("a sound shorter than half a window is encoded")
	}
}

// TestStoredFilters checks that activations have the filters of their file, and without them those of the formula,
// which torch recorded.
func TestStoredFilters(t *testing.T) {
	ops := fastest(t)
	var recorded map[string]struct {
		Taps []float32 `json:"filters_12_taps"`
	}
	if err := golden.JSON("h3/weights_vae.json", &recorded); err != nil {
		t.Fatal(err)
	}
	decoded := func(set *weights.Set, config []byte) []float32 {
		t.Helper()
		v, err := audio.Open(ops, set, config)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		out, err := v.Decode(audio.Env{Ops: ops}, golden.Input("latent", 8*2*16), 2, 16)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	set, config := without(t, "ltxaudio-c", "")
	stored := map[string]weights.Stored{}
	for _, name := range set.Names() {
		if stored[name], _ = set.Get(name); strings.HasSuffix(name, ".filter") {
			stored[name] = weights.Floats(recorded["h3audio-a"].Taps, 1, 1, 12)
		}
	}
	bare, _ := without(t, "ltxaudio-c", ".filter")
	compare(t, "filters of the formula", decoded(bare, config), decoded(weights.FromMap(stored), config))
	if slices.Equal(decoded(bare, config), decoded(set, config)) {
		t.Error("stored filters are not read")
	}
}

// TestMelsOfNarrowFiles checks that files of bfloat16, as the released ones are, give what their numbers give in
// float32.
func TestMelsOfNarrowFiles(t *testing.T) {
	for name, ops := range backends(t) {
		for _, model := range mels() {
			set, config, err := goldenweights.Set(model)
			if err != nil {
				t.Fatal(err)
			}
			narrow, wide := set.For(engine.BF16), map[string]weights.Stored{}
			for _, n := range narrow.Names() {
				s, _ := narrow.Get(n)
				wide[n] = weights.Floats(s.F32(), s.Shape...)
			}
			var got [2][]float32
			for i, s := range []*weights.Set{narrow, weights.FromMap(wide)} {
				v, err := audio.Open(ops, s, config)
				if err != nil {
					t.Fatal(err)
				}
				env := audio.Env{Ops: ops}
				wave, err := v.Decode(env, golden.Input("latent", 8*2*16), 2, 16)
				if err != nil {
					t.Fatal(err)
				}
				latent, err := v.Encode(env, golden.Fill("wave", v.Config.Step*v.Config.Sounds(), 1, 0), v.Config.Sounds(),
					v.Config.Step)
				if err != nil {
					t.Fatal(err)
				}
				got[i] = slices.Concat(wave, latent)
				v.Close()
			}
			compare(t, name+" "+model, got[0], got[1])
		}
	}
}
