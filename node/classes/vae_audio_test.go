package classes

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/media"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// levelled returns samples as VAEDecodeAudio returns them: divided by five times their standard deviation, where that
// is more than 1.
func levelled(v []float32) []float32 {
	mean, squares := 0.0, 0.0
	for _, f := range v {
		mean += float64(f) / float64(len(v))
	}
	for _, f := range v {
		squares += math.Pow(float64(f)-mean, 2)
	}
	out := slices.Clone(v)
	for i := range out {
		out[i] /= float32(max(1, 5*math.Sqrt(squares/float64(len(v)-1))))
	}
	return out
}

// TestAudioNodes compares the nodes that encode and decode sound with ComfyUI's VAE, which takes as many samples from
// the middle as make whole latents. A single channel counts as both, and of more the first two are taken.
func TestAudioNodes(t *testing.T) {
	runner := videoRunner(t)
	vae := exec(t, runner, "VAELoader", map[string]any{"vae_name": "h3audio-a.safetensors"})
	for _, n := range []int{1, 3, 8} {
		samples := latentValue(formula(fmt.Sprintf("h3audio-a/latent/%d", n), golden.InputScale, 0, 1, 32, 2, n))
		out := exec(t, runner, "VAEDecodeAudio", map[string]any{"samples": samples, "vae": vae}).(*pyjson.Object)
		wave := out.At("waveform").(*array.Tensor)
		if rate := out.At("sample_rate"); rate != int64(32000) || !slices.Equal(wave.Shape, []int{1, 2, 800 * n}) {
			t.Fatalf("%d latents are a sound %v at %v", n, wave.Shape, rate)
		}
		want := levelled(tensorOf(t, "h3/vae.safetensors", fmt.Sprintf("h3audio-a/decode/%d", n)))
		if rel := relative(values(t, wave), want); !(rel <= 1e-4) {
			t.Errorf("decode %d: relative error %.3g, bound 1e-4", n, rel)
		}
	}
	encoded := func(wave []float32, channels, rate int) []float32 {
		t.Helper()
		n := len(wave) / channels
		sound := pyjson.NewObject("waveform", array.New(wave, 1, channels, n), "sample_rate", int64(rate))
		l := exec(t, runner, "VAEEncodeAudio", map[string]any{"audio": sound, "vae": vae}).(*pyjson.Object)
		return values(t, l.At("samples"))
	}
	for n, key := range map[int]string{800: "800", 2000: "2000#through_VAE_wrapper", 6400: "6400"} {
		wave := golden.Fill(fmt.Sprintf("input:h3audio-a/wave/%d", n), 2*n, 1, 0)
		want := tensorOf(t, "h3/vae.safetensors", "h3audio-a/encode/"+key)
		if rel := relative(encoded(wave, 2, 32000), want); !(rel <= 1e-4) {
			t.Errorf("encode %d: relative error %.3g, bound 1e-4", n, rel)
		}
	}
	one := golden.Fill("input:one", 1600, 1, 0)
	both := encoded(slices.Concat(one, one), 2, 32000)
	third := golden.Fill("input:third", 1600, 1, 0)
	three := encoded(slices.Concat(one, one, third), 3, 32000)
	if !slices.Equal(encoded(one, 1, 32000), both) || !slices.Equal(three, both) {
		t.Error("one channel, or two and a third one, are not encoded as two equal ones")
	}
	fast := &value.Audio{B: 1, C: 1, N: 2700, Rate: 48000, Data: golden.Fill("input:fast", 2700, 1, 0)}
	slow := media.Resampled(fast, 32000)
	if !slices.Equal(encoded(fast.Data, 1, 48000), encoded(slow.Data, 1, 32000)) {
		t.Error("a sound of 48 kHz is not encoded as it is at 32 kHz")
	}
}

// TestSoundBesideVideo decodes the two parts of a latent, each with its autoencoder: they are what they are alone.
func TestSoundBesideVideo(t *testing.T) {
	root := t.TempDir()
	for _, model := range []string{"h3vae-a", "h3audio-a"} {
		writeGoldenModel(t, model, "", filepath.Join(root, "vae", model+".safetensors"))
	}
	video, sound := request.NewLatent(1, 24, 2*2, 3), request.NewLatent(1, 32, 2, 3)
	video.T = 2
	video.Data = golden.Input("h3vae-a/latent/2x2x3", len(video.Data))
	sound.Data = golden.Input("h3audio-a/latent/3", len(sound.Data))
	both := &value.Latent{Samples: request.Join(video, sound)}
	kept := map[string][]float32{}
	keep := graph.Class{
		Name: "KeepBoth", Output: true, Inputs: []graph.Input{graph.Bare("images", "IMAGE"), graph.Bare("audio", "AUDIO")},
		Run: func(c *graph.Call) ([]any, error) {
			kept["h3vae-a/decode/2x2x3#image"] = c.Image("images").Data
			kept["h3audio-a/decode/3"] = graph.Arg[*value.Audio](c, "audio").Data
			return nil, nil
		},
	}
	g := newGraph()
	latent := g.add("Both")
	g.add("KeepBoth", "images", g.add("VAEDecode", "samples", latent, "vae", g.add("VAELoader", "vae_name",
		"h3vae-a.safetensors")), "audio", g.add("VAEDecodeAudio", "samples", latent, "vae", g.add("VAELoader", "vae_name",
		"h3audio-a.safetensors")))
	given := giving(map[string]given{"Both": {"LATENT", both}}, map[string]*value.Latent{})
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(append(given, keep)...),
	})
	check(t, err)
	defer runner.Close()
	if _, err := runner.Run(context.Background(), graph.Job{ID: "both", Workflow: g.workflow(t)}, nil); err != nil {
		t.Fatal(err)
	}
	for key, got := range kept {
		want := tensorOf(t, "h3/vae.safetensors", key)
		if strings.Contains(key, "audio") {
			want = levelled(want)
		}
		if rel := relative(got, want); !(rel <= 1e-4) {
			t.Errorf("%s: relative error %.3g, bound 1e-4", key, rel)
		}
	}
	if len(kept) != 2 {
		t.Errorf("%d parts were decoded", len(kept))
	}
}

// TestWrongSounds checks what the nodes of sound and those of pictures refuse, with the field and what is allowed.
func TestWrongSounds(t *testing.T) {
	runner := videoRunner(t)
	vae := func(model string) any {
		return exec(t, runner, "VAELoader", map[string]any{"vae_name": model + ".safetensors"})
	}
	sound := func(n, rate int) any {
		return pyjson.NewObject("waveform", array.New(make([]float32, n), 1, 1, n), "sample_rate", int64(rate))
	}
	latent := func(shape ...int) map[string]any { return latentValue(formula("latent", 1, 0, shape...)) }
	for _, c := range []struct {
		class, model string
		inputs       map[string]any
		field, want  string
	}{
		{"VAEDecode", "h3audio-a", map[string]any{"samples": latent(1, 32, 2, 3)}, "vae", "use VAEDecodeAudio"},
		{"VAEEncode", "h3audio-a", map[string]any{"pixels": formula("p", 1, 0, 1, 32, 32, 3)}, "vae", "of sound"},
		{"VAEDecodeTiled", "h3audio-a", map[string]any{"samples": latent(1, 32, 2, 3), "tile_size": 64}, "vae", "of sound"},
		{"VAEDecodeAudio", "h3vae-a", map[string]any{"samples": latent(1, 32, 2, 3)}, "vae", "minimax_h3_audio_vae"},
		{"VAEDecodeAudio", "h3audio-a", map[string]any{"samples": latent(1, 24, 2, 2, 3)}, "samples", "has no sound"},
		{"VAEDecodeAudio", "h3audio-a", map[string]any{"samples": latent(1, 16, 2, 3)}, "vae", "of 32 channels, got 16"},
		{"VAEEncodeAudio", "wan21vae-a", map[string]any{"audio": sound(800, 32000)}, "vae", "no autoencoder of sound"},
		{"VAEEncodeAudio", "h3audio-a", map[string]any{"audio": sound(799, 32000)}, "audio", "less than the 800"},
		{"VAEEncodeAudio", "h3audio-a", map[string]any{"audio": sound(1198, 48000)}, "audio", "799 samples, at 32000"},
	} {
		c.inputs["vae"] = vae(c.model)
		_, err := runner.Exec(context.Background(), graph.ExecRequest{Class: c.class, Inputs: c.inputs}, nil)
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != c.field || !strings.Contains(f.Text, c.want) {
			t.Errorf("%s with %s: got %v, want %q of field %s", c.class, c.model, err, c.want, c.field)
		}
	}
}
