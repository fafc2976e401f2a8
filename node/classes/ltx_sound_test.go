package classes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/models/audio"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// ltxSoundHandle returns the handle of an autoencoder of sound of LTX-2's sizes.
func ltxSoundHandle() *value.VAE {
	mel := audio.Mel{Sounds: 2, Bands: 64, Rate: 16000, Hop: 160}
	return &value.VAE{Name: "sound", Channels: 8, Sound: &audio.Config{Channels: 8, Mel: &mel}}
}

// ltxSoundRoots returns a models folder with checkpoints of the golden autoencoders of sound, of which ltxaudio-a has
// one of videos beside it, the same files among autoencoders, and others.
func ltxSoundRoots(t *testing.T) files.Roots {
	t.Helper()
	root := t.TempDir()
	at := func(folder, name string) string { return filepath.Join(root, folder, name+".safetensors") }
	for _, model := range []string{"ltxaudio-b", "ltxaudio-c"} {
		writeGoldenModel(t, model, "", at("checkpoints", model))
	}
	set, config, err := goldenweights.Set("ltxaudio-a")
	check(t, err)
	video, videoConfig, err := goldenweights.Set("ltxvae-a")
	check(t, err)
	var more []safetensors.Tensor
	for _, name := range video.Names() {
		s, _ := video.Get(name)
		more = append(more, safetensors.Tensor{
			Name: "vae." + name, DType: s.DType, Shape: s.Shape, Data: datafile.Of(s.Data),
		})
	}
	both := map[string]json.RawMessage{}
	check(t, json.Unmarshal(config, &both))
	check(t, json.Unmarshal(videoConfig, &both))
	text, err := json.Marshal(both)
	check(t, err)
	same := func(n string) string { return n }
	for _, folder := range []string{"checkpoints", "vae"} {
		writeModel(t, at(folder, "ltxaudio-a"), set, string(text), same, more...)
	}
	writeModel(t, at("checkpoints", "bare"), set, "{}", same)
	writeModel(t, at("vae", "alone"), set, string(config), func(n string) string {
		return strings.Replace(n, "audio_vae.", "autoencoder.", 1)
	})
	writeGoldenModel(t, "ltxvae-a", "vae.", at("checkpoints", "silent"))
	writeGoldenModel(t, "h3audio-a", "", at("vae", "h3audio-a"))
	return files.Roots{Models: []string{root}}
}

func ltxSoundRunner(t *testing.T, extra ...graph.Class) *graph.Runner {
	t.Helper()
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: ltxSoundRoots(t), Catalogue: All(extra...),
	})
	check(t, err)
	t.Cleanup(runner.Close)
	return runner
}

// TestSoundAndVideoOfOneFile uses both autoencoders of a checkpoint in turn, as workflows of LTX-2.3 do, which encode a
// picture and decode a sound: both are resident beside each other, and the second values are those of the first.
func TestSoundAndVideoOfOneFile(t *testing.T) {
	root := t.TempDir()
	standInLTX("ltx-a", "gemma3-a", "ltxvae-a", "ltxaudio-a")(t, filepath.Join(root, "checkpoints/all.safetensors"))
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	ear := exec(t, runner, "LTXVAudioVAELoader", map[string]any{"ckpt_name": "all.safetensors"})
	loaded, err := runner.Exec(t.Context(), graph.ExecRequest{
		Class: "CheckpointLoaderSimple", Inputs: map[string]any{"ckpt_name": "all.safetensors"},
	}, nil)
	check(t, err)
	eye := loaded.Outputs[2]
	sound := func() []float32 {
		samples := latentValue(formula("ltxaudio-a/latent/5", golden.InputScale, 0, 1, 8, 5, 16))
		out := exec(t, runner, "LTXVAudioVAEDecode", map[string]any{"samples": samples, "audio_vae": ear}).(*pyjson.Object)
		return values(t, out.At("waveform"))
	}
	picture := func() []float32 {
		out := exec(t, runner, "LTXVImgToVideoInplace", map[string]any{
			"image": formula("pixels", 1, 0.5, 1, 64, 64, 3), "vae": eye, "strength": 1.0, "bypass": false,
			"latent": latentValue(formula("video", 1, 0, 1, 128, 1, 2, 2)),
		})
		return values(t, out.(*pyjson.Object).At("samples"))
	}
	heard, seen := sound(), picture()
	if again := sound(); len(again) == 0 || !slices.Equal(again, heard) {
		t.Error("after a picture the same sound is decoded to other values")
	}
	if again := picture(); len(again) != 128*2*2 || !slices.Equal(again, seen) {
		t.Errorf("after a sound the same picture is encoded to other values, %d", len(again))
	}
}

// TestLTXSoundNodes compares the nodes that encode, decode and make latents of sound with ComfyUI's: sounds of one to
// three channels and of other rates, cut to whole steps, and rates of what is decoded. ComfyUI's general nodes for
// sound do the same, and make loud sounds quieter.
func TestLTXSoundNodes(t *testing.T) {
	runner := ltxSoundRunner(t)
	var recorded map[string]struct {
		Shape []int
		Rate  int64
	}
	check(t, golden.JSON("ltx/audio.json", &recorded))
	near := func(key string, got any, shape []int, of func([]float32) []float32) {
		t.Helper()
		tensor := got.(*array.Tensor)
		if !slices.Equal(tensor.Shape, shape) {
			t.Fatalf("%s: shape %v, want %v", key, tensor.Shape, shape)
		}
		want := tensorOf(t, "ltx/audio.safetensors", key)
		if of != nil {
			want = of(want)
		}
		if rel := relative(values(t, tensor), want); !(rel <= 2e-5) {
			t.Errorf("%s: relative error %.3g, bound 2e-5", key, rel)
		}
	}
	done := 0
	for key, r := range recorded {
		model, rest, _ := strings.Cut(key, "/")
		kind, size, _ := strings.Cut(rest, "/")
		vae := exec(t, runner, "LTXVAudioVAELoader", map[string]any{"ckpt_name": model + ".safetensors"})
		done++
		var channels, n int
		var rate int64
		switch kind {
		case "decode":
			_, err := fmt.Sscan(size, &n)
			check(t, err)
			samples := latentValue(formula(model+"/latent/"+size, golden.InputScale, 0, 1, 8, n, 16))
			for class, field := range map[string]string{"LTXVAudioVAEDecode": "audio_vae", "VAEDecodeAudio": "vae"} {
				out := exec(t, runner, class, map[string]any{"samples": samples, field: vae}).(*pyjson.Object)
				if got := out.At("sample_rate"); got != r.Rate {
					t.Errorf("%s: %v samples a second, want %d", key, got, r.Rate)
				}
				of := levelled
				if field == "audio_vae" {
					of = nil
				}
				near(key, out.At("waveform"), r.Shape, of)
			}
		case "encode":
			_, err := fmt.Sscanf(size, "%dx%dx%d", &channels, &n, &rate)
			check(t, err)
			wave := golden.Fill(fmt.Sprintf("input:%s/wave/%dx%d", model, channels, n), channels*n, 1, 0)
			sound := pyjson.NewObject("waveform", array.New(wave, 1, channels, n), "sample_rate", rate)
			for class, field := range map[string]string{"LTXVAudioVAEEncode": "audio_vae", "VAEEncodeAudio": "vae"} {
				l := exec(t, runner, class, map[string]any{"audio": sound, field: vae}).(*pyjson.Object)
				near(key, l.At("samples"), r.Shape, nil)
			}
		case "empty":
			var fps float64
			_, err := fmt.Sscanf(size, "%dx%g", &n, &fps)
			check(t, err)
			l := exec(t, runner, "LTXVEmptyLatentAudio", map[string]any{
				"frames_number": n, "frame_rate": fps, "batch_size": 2, "audio_vae": vae,
			}).(*pyjson.Object)
			if got := l.At("samples").(*array.Tensor).Shape; !slices.Equal(got, r.Shape) {
				t.Errorf("%s: shape %v, want %v", key, got, r.Shape)
			}
		}
	}
	if done != 25 {
		t.Errorf("%d cases were compared, want 25", done)
	}
	alone := exec(t, runner, "VAELoader", map[string]any{"vae_name": "alone.safetensors"})
	samples := latentValue(formula("ltxaudio-a/latent/2", golden.InputScale, 0, 1, 8, 2, 16))
	out := exec(t, runner, "LTXVAudioVAEDecode", map[string]any{"samples": samples, "audio_vae": alone})
	near("ltxaudio-a/decode/2", out.(*pyjson.Object).At("waveform"), []int{1, 2, 1200}, nil)
}

// TestLTXSoundBesideVideo decodes a batch of two sounds beside videos, which come out as they do alone.
func TestLTXSoundBesideVideo(t *testing.T) {
	sound := request.NewLatent(2, 8, 5, 16)
	one := golden.Input("ltxaudio-a/latent/5", len(sound.Data)/2)
	copy(sound.Data[len(one):], one)
	var kept *value.Audio
	keep := graph.Class{
		Name: "KeepSound", Output: true, Inputs: []graph.Input{graph.Bare("audio", "AUDIO")},
		Run: func(c *graph.Call) ([]any, error) {
			kept = graph.Arg[*value.Audio](c, "audio")
			return nil, nil
		},
	}
	given := giving(map[string]given{"Sound": {"LATENT", &value.Latent{Samples: sound}}}, map[string]*value.Latent{})
	runner := ltxSoundRunner(t, append(given, keep)...)
	g := newGraph()
	video := g.add("EmptyLTXVLatentVideo", "width", int64(64), "height", int64(64), "length", int64(9), "batch_size",
		int64(2))
	g.add("KeepSound", "audio", g.add("LTXVAudioVAEDecode", "samples",
		g.add("LTXVConcatAVLatent", "video_latent", video, "audio_latent", g.add("Sound")), "audio_vae",
		g.add("LTXVAudioVAELoader", "ckpt_name", "ltxaudio-a.safetensors")))
	if _, err := runner.Run(context.Background(), graph.Job{ID: "sound", Workflow: g.workflow(t)}, nil); err != nil {
		t.Fatal(err)
	}
	want := tensorOf(t, "ltx/audio.safetensors", "ltxaudio-a/decode/5")
	if kept.B != 2 || kept.C != 2 || kept.Rate != 24000 || len(kept.Data) != 2*len(want) {
		t.Fatalf("got %d sounds of %d channels, %d values at %d", kept.B, kept.C, len(kept.Data), kept.Rate)
	}
	if rel := relative(kept.Data[len(want):], want); !(rel <= 2e-5) {
		t.Errorf("the second sound: relative error %.3g, bound 2e-5", rel)
	}
}

// TestLTXWrongSounds checks what the nodes of sound refuse, with the field and what is allowed.
func TestLTXWrongSounds(t *testing.T) {
	silent := map[string]given{"Silent": {"AUDIO", (*value.Audio)(nil)}}
	runner := ltxSoundRunner(t, giving(silent, map[string]*value.Latent{})...)
	g := newGraph()
	g.add("Keep", "latent", g.add("LTXVAudioVAEEncode", "audio", g.add("Silent"), "audio_vae",
		g.add("LTXVAudioVAELoader", "ckpt_name", "ltxaudio-a.safetensors")), "as", "sound")
	_, err := runner.Run(context.Background(), graph.Job{ID: "silent", Workflow: g.workflow(t)}, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Field != "audio" || !strings.Contains(f.Text, "has no audio track") {
		t.Errorf("the sound of a silent video: got %#v", err)
	}
	load := func(class, field, name string) any {
		return exec(t, runner, class, map[string]any{field: name + ".safetensors"})
	}
	sound := load("LTXVAudioVAELoader", "ckpt_name", "ltxaudio-a")
	video := load("VAELoader", "vae_name", "ltxaudio-a") // ComfyUI's CheckpointLoaderSimple takes that of videos, too
	other := load("VAELoader", "vae_name", "h3audio-a")
	wave := func(n, rate int) any {
		return pyjson.NewObject("waveform", array.New(make([]float32, n), 1, 1, n), "sample_rate", int64(rate))
	}
	latent := func(shape ...int) map[string]any { return latentValue(formula("latent", 1, 0, shape...)) }
	empty := map[string]any{"frames_number": 9, "frame_rate": 25.0, "batch_size": 1}
	for _, c := range []struct {
		class       string
		vae         any
		inputs      map[string]any
		field, want string
	}{
		{"LTXVAudioVAEDecode", video, map[string]any{"samples": latent(1, 8, 2, 16)}, "audio_vae", "LTXVAudioVAELoader"},
		{"LTXVAudioVAEEncode", video, map[string]any{"audio": wave(9000, 44100)}, "audio_vae", "no autoencoder of sound"},
		{"LTXVEmptyLatentAudio", video, empty, "audio_vae", "no autoencoder of sound"},
		{"LTXVEmptyLatentAudio", other, empty, "audio_vae", "is not LTX-2's"},
		{"LTXVAudioVAEDecode", sound, map[string]any{"samples": latent(1, 128, 2, 2, 3)}, "samples", "has no sound"},
		{"LTXVAudioVAEDecode", sound, map[string]any{"samples": latent(1, 32, 2, 16)}, "audio_vae", "8 channels, got 32"},
		{
			"LTXVAudioVAEDecode", sound,
			map[string]any{"samples": latent(1, 8, 3, 12)},
			"samples",
			"3 rows of 12 columns: want 1 or more of 16",
		},
		{"LTXVAudioVAEEncode", sound, map[string]any{"audio": wave(4095, 44100)}, "audio", "less than the 4096"},
		{"LTXVAudioVAEEncode", sound, map[string]any{"audio": wave(1400, 16000)}, "audio", "3859 samples, at 44100"},
		{"LTXVAudioVAEEncode", sound, map[string]any{"audio": wave(0, 44100)}, "audio", "0 samples, at 44100"},
		{
			"LTXVAudioVAELoader", nil,
			map[string]any{"ckpt_name": "silent.safetensors"},
			"ckpt_name",
			"holds no autoencoder of sound",
		},
		{
			"LTXVAudioVAELoader", nil,
			map[string]any{"ckpt_name": "bare.safetensors"},
			"ckpt_name",
			"no config with the members audio_vae and vocoder",
		},
	} {
		inputs := map[string]any{}
		for k, v := range c.inputs {
			inputs[k] = v
		}
		if c.vae != nil {
			inputs["audio_vae"] = c.vae
		}
		_, err := runner.Exec(context.Background(), graph.ExecRequest{Class: c.class, Inputs: inputs}, nil)
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != c.field || !strings.Contains(f.Text, c.want) {
			t.Errorf("%s: got %#v, want %q of field %s", c.class, err, c.want, c.field)
		}
	}
}
