package classes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/tests/golden"
)

// ltxTextRoot returns a folder with a small Gemma 3 as text_encoders/gemma.safetensors, with a vocabulary and a part of
// its eyes, and its projection as text_encoders/projection.safetensors and in checkpoints/ltx.safetensors, beside the
// network.
func ltxTextRoot(t *testing.T, encoder, network string) string {
	t.Helper()
	root := t.TempDir()
	vocabulary, err := os.ReadFile(golden.Path("ltx/spiece_synthetic.model"))
	check(t, err)
	set, _, err := goldenweights.Set(encoder)
	check(t, err)
	parts := map[bool]map[string]weights.Stored{true: {}, false: {}}
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		parts[strings.HasPrefix(name, "text_embedding_projection.")][name] = s
	}
	eye := weights.Floats(make([]float32, 4), 4)
	parts[false]["vision_model.post_layernorm.weight"] = eye
	writeModel(t, filepath.Join(root, "text_encoders/gemma.safetensors"), weights.FromMap(parts[false]), "{}",
		strings.Clone, safetensors.Tensor{
			Name: "spiece_model", DType: engine.U8, Shape: []int{len(vocabulary)}, Data: datafile.Of(vocabulary),
		})
	writeModel(t, filepath.Join(root, "text_encoders/projection.safetensors"), weights.FromMap(parts[true]), "{}",
		strings.Clone)
	var beside []safetensors.Tensor
	for name, s := range parts[true] {
		beside = append(beside, safetensors.Tensor{Name: name, DType: s.DType, Shape: s.Shape, Data: datafile.Of(s.Data)})
	}
	writeGoldenModel(t, network, "model.diffusion_model.", filepath.Join(root, "checkpoints/ltx.safetensors"), beside...)
	writeGoldenModel(t, network, "", filepath.Join(root, "diffusion_models/ltx.safetensors"))
	return root
}

// TestLTXTexts runs LTX-2 from words: a video with its sound is the same as with the recorded states of the text, by
// both loaders and both projections, one for 2.0 and two for 2.3.
func TestLTXTexts(t *testing.T) {
	for _, c := range []struct{ encoder, network, loader string }{
		{"gemma3-a", "ltx-a", "LTXAVTextEncoderLoader"}, {"gemma3-b", "ltx-b", "DualCLIPLoader"},
	} {
		root := ltxTextRoot(t, c.encoder, c.network)
		rows := tensorOf(t, "ltx/text.safetensors", c.encoder+"/p0#cond")
		const n = 13
		known := value.Conditioning{{
			Entry:        dit.Entry{Context: dit.Array{Rows: n, Cols: len(rows) / n, Data: rows}},
			MaskStrength: 1,
		}}
		sample := func(text func(*graphMaker) []any) map[string]*value.Latent {
			g := newGraph()
			sound := g.add("LTXVEmptyLatentAudio", "frames_number", int64(9), "frame_rate", int64(25), "batch_size", int64(1),
				"audio_vae", g.add("AudioVAE"))
			video := g.add("EmptyLTXVLatentVideo", "width", int64(64), "height", int64(64), "length", int64(9), "batch_size",
				int64(1))
			out := g.add("SamplerCustomAdvanced", "noise", g.add("RandomNoise", "noise_seed", int64(3)), "guider",
				g.add("BasicGuider", "model", g.add("UNETLoader", "unet_name", "ltx.safetensors", "weight_dtype", "default"),
					"conditioning", text(g)),
				"sampler", g.add("KSamplerSelect", "sampler_name", "euler"), "sigmas", g.add("Sigmas"), "latent_image",
				g.add("LTXVConcatAVLatent", "video_latent", video, "audio_latent", sound))
			apart := g.add("LTXVSeparateAVLatent", "av_latent", out)
			g.add("Keep", "latent", apart, "as", "video")
			g.add("Keep", "latent", second(apart), "as", "audio")
			return runLTX(t, g, map[string]given{
				"Known": {"CONDITIONING", known}, "Sigmas": {"SIGMAS", value.Sigmas{1, 0.6, 0}},
				"AudioVAE": {"VAE", ltxSoundHandle()},
			}, root)
		}
		want := sample(func(g *graphMaker) []any { return g.add("Known") })
		words := func(text string) map[string]*value.Latent {
			return sample(func(g *graphMaker) []any {
				var clip []any
				if c.loader == "DualCLIPLoader" {
					clip = g.add(c.loader, "clip_name1", "projection.safetensors", "clip_name2", "gemma.safetensors", "type",
						"ltxv", "device", "default")
				} else {
					clip = g.add(c.loader, "text_encoder", "gemma.safetensors", "ckpt_name", "ltx.safetensors", "device", "default")
				}
				return g.add("CLIPTextEncode", "clip", clip, "text", text)
			})
		}
		got, other := words("a cat walks over the grass"), words("")
		for _, part := range []string{"video", "audio"} {
			if worst, err := goldenrun.Compare(got[part].Samples.Data, want[part].Samples.Data, 1e-4); err != nil {
				t.Errorf("%s, %s: %v", c.network, part, err)
			} else {
				t.Logf("%s, %s: %.2g", c.network, part, worst)
			}
			if slices.Equal(other[part].Samples.Data, want[part].Samples.Data) {
				t.Errorf("%s, %s: an empty text gives the same", c.network, part)
			}
		}
	}
}

// TestLTXTextsAreWritten compares the texts that a small Gemma 3 writes with ComfyUI's: with the template and without,
// with the likeliest tokens and with sampled ones, from prompts that pads in front fill up and from a longer one. The
// class of LTX-2 writes what that one does when it is told LTX-2's words, less what it thought.
func TestLTXTextsAreWritten(t *testing.T) {
	var cases map[string]struct {
		Prompt, Text string
		Bare         bool
		Sampling     map[string]any
		Most         int `json:"max_length"`
	}
	check(t, golden.JSON("ltx/generate.json", &cases))
	for _, encoder := range []string{"gemma3-a", "gemma3-b"} {
		network := "ltx-" + strings.TrimPrefix(encoder, "gemma3-")
		runner, err := graph.NewRunner(graph.Config{
			Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{ltxTextRoot(t, encoder, network)}},
			Catalogue: All(),
		})
		check(t, err)
		defer runner.Close()
		clip := exec(t, runner, "LTXAVTextEncoderLoader", map[string]any{
			"text_encoder": "gemma.safetensors", "ckpt_name": "ltx.safetensors", "device": "default",
		})
		write := func(class, prompt string, bare bool, most int, sampling map[string]any) string {
			in := map[string]any{
				"clip": clip, "prompt": prompt, "max_length": most, "sampling_mode": "off", "use_default_template": !bare,
			}
			for name, v := range sampling {
				in["sampling_mode"], in["sampling_mode."+name] = "on", v
			}
			return exec(t, runner, class, in).(string)
		}
		for key, c := range cases {
			if !strings.HasPrefix(key, encoder) || testing.Short() && strings.HasSuffix(key, "/long") {
				continue
			}
			got, want := write("TextGenerate", c.Prompt, c.Bare, c.Most, c.Sampling), strings.TrimSpace(c.Text)
			if got != want { // 0.33.0 keeps what is around a text
				t.Errorf("%s: %q, want %q", key, got, want)
			}
		}
		const turns = "<start_of_turn>system\n" + describeVideo + "<end_of_turn>\n<start_of_turn>user\nPrompt: the sea" +
			"<end_of_turn>\n<start_of_turn>model\n"
		drawn := cases[encoder+"/hot"].Sampling
		got := write("TextGenerateLTX2Prompt", "the sea", false, 12, drawn)
		want := write("TextGenerate", turns, false, 12, drawn)
		if got != strings.TrimSpace(want) || got == "" {
			t.Errorf("%s writes %q, want %q", encoder, got, want)
		}
		_, err = runner.Exec(t.Context(), graph.ExecRequest{Class: "TextGenerateLTX2Prompt", Inputs: map[string]any{
			"clip": clip, "prompt": "", "max_length": 1, "sampling_mode": "off",
			"image": exec(t, runner, "EmptyImage", map[string]any{"width": 32, "height": 32, "batch_size": 1, "color": 0}),
		}}, nil)
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != "image" || !strings.Contains(f.Text, "about words alone") {
			t.Errorf("a prompt about a picture: got %v", err)
		}
	}
	for written, want := range map[string]string{
		"<think>a\nb</think> c ": "c", "a<think>b": "a", "<think>never ends": "the sea", "  ": "the sea",
	} {
		if got := answer(written, "the sea"); got != want {
			t.Errorf("%q becomes %q, want %q", written, got, want)
		}
	}
}

// TestLTXTextRefusals checks the errors for an encoder without its projection, a checkpoint without one, and the CLIP
// of a checkpoint that has no encoder, which is loaded like ComfyUI's and encodes nothing.
func TestLTXTextRefusals(t *testing.T) {
	root := ltxTextRoot(t, "gemma3-a", "ltx-a")
	writeGoldenModel(t, "ltx-b", "model.diffusion_model.", filepath.Join(root, "checkpoints/bare.safetensors"))
	roots := files.Roots{Models: []string{root}}
	run, err := graph.NewRunner(graph.Config{Roots: roots, Catalogue: All()})
	check(t, err)
	defer run.Close()
	for _, c := range []struct {
		class, want string
		inputs      map[string]any
	}{
		{"CLIPLoader", "type ltxv needs the encoders gemma3_12b and projection, the files hold gemma3_12b", map[string]any{
			"clip_name": "gemma.safetensors", "type": "ltxv", "device": "default",
		}},
		{
			"LTXAVTextEncoderLoader", "bare.safetensors holds no text encoder: it looks like a diffusion model (ltx)",
			map[string]any{"text_encoder": "gemma.safetensors", "ckpt_name": "bare.safetensors", "device": "default"},
		},
	} {
		_, err := run.Exec(context.Background(), graph.ExecRequest{Class: c.class, Inputs: c.inputs}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.class, err, c.want)
		}
	}
	check(t, roots.Header(files.KindCheckpoint, "ckpt_name", "ltx.safetensors", false, func(h files.Header) error {
		clip, err := value.OpenCheckpointCLIP(h, "ltx")
		if err != nil {
			return err
		}
		_, _, err = clip.Encode(value.Use{}, func(string) (string, bool) { return "", true })
		var f *fault.Error
		if !clip.Empty() || !errors.As(err, &f) || f.Field != "clip" || !strings.Contains(f.Text, "no text encoder") {
			t.Errorf("the CLIP of a checkpoint without text encoders: %v, %v", clip, err)
		}
		return nil
	}))
}

// standInGemma4 writes those tensors of a Gemma 4 that only names, nil: all, with a vocabulary and a part of its eyes
// and ears.
func standInGemma4(model string, only func(name string) bool) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		data, err := golden.Read("ltx/gemma4_tokenizer.json")
		check(t, err)
		set, config, err := goldenweights.Set(model)
		check(t, err)
		own := map[string]weights.Stored{
			"vision_model.post_layernorm.weight":          weights.Floats(make([]float32, 4), 4),
			"audio_projector.embedding_projection.weight": weights.Floats(make([]float32, 4), 2, 2),
		}
		for _, n := range set.Names() {
			if only == nil || only(n) {
				own[n], _ = set.Get(n)
			}
		}
		writeModel(t, path, weights.FromMap(own), string(config), strings.Clone, inside("tokenizer_json", data))
	}
}

// gemma4Root returns a folder with small Gemma 4 as text_encoders/NAME.safetensors, with a vocabulary and a part of
// their eyes and ears, the one like 12B with its projection and, as bare.safetensors, without, and with a network.
func gemma4Root(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, model := range []string{"gemma4-a", "gemma4-e2", "gemma4-e4"} {
		standInGemma4(model, nil)(t, filepath.Join(root, "text_encoders", model+".safetensors"))
	}
	standInGemma4("gemma4-a", func(name string) bool { return strings.HasPrefix(name, "model.") })(t,
		filepath.Join(root, "text_encoders/bare.safetensors"))
	writeGoldenModel(t, "ltx-b", "", filepath.Join(root, "diffusion_models/ltx.safetensors"))
	return root
}

// TestGemma4Texts runs LTX-2.5 from words: a video with its sound is the same as with the recorded states of the text.
func TestGemma4Texts(t *testing.T) {
	root := gemma4Root(t)
	rows := tensorOf(t, "ltx/gemma4.safetensors", "gemma4-a/p0#cond")
	const n = 13
	known := value.Conditioning{{
		Entry:        dit.Entry{Context: dit.Array{Rows: n, Cols: len(rows) / n, Data: rows}},
		MaskStrength: 1,
	}}
	sample := func(text func(*graphMaker) []any) map[string]*value.Latent {
		g := newGraph()
		sound := g.add("LTXVEmptyLatentAudio", "frames_number", int64(9), "frame_rate", int64(25), "batch_size", int64(1),
			"audio_vae", g.add("AudioVAE"))
		video := g.add("EmptyLTXVLatentVideo", "width", int64(64), "height", int64(64), "length", int64(9), "batch_size",
			int64(1))
		out := g.add("SamplerCustomAdvanced", "noise", g.add("RandomNoise", "noise_seed", int64(3)), "guider",
			g.add("BasicGuider", "model", g.add("UNETLoader", "unet_name", "ltx.safetensors", "weight_dtype", "default"),
				"conditioning", text(g)),
			"sampler", g.add("KSamplerSelect", "sampler_name", "euler"), "sigmas", g.add("Sigmas"), "latent_image",
			g.add("LTXVConcatAVLatent", "video_latent", video, "audio_latent", sound))
		apart := g.add("LTXVSeparateAVLatent", "av_latent", out)
		g.add("Keep", "latent", apart, "as", "video")
		g.add("Keep", "latent", second(apart), "as", "audio")
		return runLTX(t, g, map[string]given{
			"Known": {"CONDITIONING", known}, "Sigmas": {"SIGMAS", value.Sigmas{1, 0.6, 0}},
			"AudioVAE": {"VAE", ltxSoundHandle()},
		}, root)
	}
	want := sample(func(g *graphMaker) []any { return g.add("Known") })
	words := func(text string) map[string]*value.Latent {
		return sample(func(g *graphMaker) []any {
			clip := g.add("CLIPLoader", "clip_name", "gemma4-a.safetensors", "type", "ltxv", "device", "default")
			return g.add("CLIPTextEncode", "clip", clip, "text", text)
		})
	}
	got, other := words("a cat walks over the grass"), words("")
	for _, part := range []string{"video", "audio"} {
		if worst, err := goldenrun.Compare(got[part].Samples.Data, want[part].Samples.Data, 1e-4); err != nil {
			t.Errorf("%s: %v", part, err)
		} else {
			t.Logf("%s: %.2g", part, worst)
		}
		if slices.Equal(other[part].Samples.Data, want[part].Samples.Data) {
			t.Errorf("%s: an empty text gives the same", part)
		}
	}
}

// TestGemma4TextsAreWritten compares the texts that small Gemma 4 write with ComfyUI's, whatever type the loader is
// told, and checks what is refused: pictures, and encoding without a projection.
func TestGemma4TextsAreWritten(t *testing.T) {
	var cases map[string]struct {
		Prompt, Text string
		Bare         bool
		Sampling     map[string]any
		Most         int `json:"max_length"`
	}
	check(t, golden.JSON("ltx/gemma4_generate.json", &cases))
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{gemma4Root(t)}}, Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	load := func(name, kind string) any {
		return exec(t, runner, "CLIPLoader", map[string]any{
			"clip_name": name + ".safetensors", "type": kind, "device": "default",
		})
	}
	clips := map[string]any{
		"gemma4-a": load("gemma4-a", "ltxv"), "gemma4-e2": load("gemma4-e2", "ltxv"),
		"gemma4-e4": load("gemma4-e4", "stable_diffusion"),
	}
	write := func(class string, clip any, prompt string, bare bool, most int, sampling map[string]any) string {
		in := map[string]any{
			"clip": clip, "prompt": prompt, "max_length": most, "sampling_mode": "off", "use_default_template": !bare,
		}
		for name, v := range sampling {
			in["sampling_mode"], in["sampling_mode."+name] = "on", v
		}
		return exec(t, runner, class, in).(string)
	}
	for key, c := range cases {
		model, _, _ := strings.Cut(key, "/")
		if got := write("TextGenerate", clips[model], c.Prompt, c.Bare, c.Most, c.Sampling); got != c.Text {
			t.Errorf("%s: %q, want %q", key, got, c.Text)
		}
	}
	const turns = "<|turn>system\n" + describeShots + "<turn|>\n<|turn>user\nPrompt: the sea<turn|>\n<|turn>model\n" +
		"<|channel>final\n"
	drawn := cases["gemma4-e2/hot"].Sampling
	got := write("TextGenerateLTX2Prompt", clips["gemma4-e2"], "the sea", false, 12, drawn)
	want := write("TextGenerate", clips["gemma4-e2"], turns, false, 12, drawn)
	if got != answer(want, "the sea") || got == "" {
		t.Errorf("LTX-2.5's prompt is %q, want %q", got, want)
	}
	picture := exec(t, runner, "EmptyImage", map[string]any{"width": 32, "height": 32, "batch_size": 1, "color": 0})
	for _, c := range []struct {
		class, field, want string
		inputs             map[string]any
	}{
		{"TextGenerate", "image", "about words alone", map[string]any{
			"clip": clips["gemma4-e2"], "prompt": "", "max_length": 1, "sampling_mode": "off", "image": picture,
		}},
		{"CLIPTextEncode", "", "without the projection", map[string]any{"clip": clips["gemma4-e4"], "text": "a"}},
		{"CLIPTextEncode", "", "without the projection", map[string]any{"clip": load("bare", "ltxv"), "text": "a"}},
	} {
		_, err = runner.Exec(t.Context(), graph.ExecRequest{Class: c.class, Inputs: c.inputs}, nil)
		var f *fault.Error
		if !errors.As(err, &f) || c.field != "" && f.Field != c.field || !strings.Contains(f.Text, c.want) {
			t.Errorf("%s: got %v, want %q", c.class, err, c.want)
		}
	}
}
