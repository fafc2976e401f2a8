package classes

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// voiceRun is one run of ltx/voice.json.
type voiceRun struct {
	Model             string
	Channels, Samples int
	CFG               float64
	Scale, Start, End float64
	Begun             bool // a sound is given, whose first row changes less
	Sigmas            []float32
	Width             int
	Tokens            []int
	Steps             [][2]int // rows of the reference and texts of every call
}

// graph returns the nodes of a run.
func (r *voiceRun) graph(t *testing.T, name string) (*graphMaker, map[string]given) {
	t.Helper()
	wave := golden.Fill("input:voice/"+name, r.Channels*r.Samples, 1, 0)
	video := &value.Latent{Samples: request.NewLatent(1, ltxChannels, 6, 2)}
	video.Samples.T = 2
	sound := &value.Latent{Samples: request.NewLatent(1, 8, 9, 16)}
	if r.Begun {
		sound.Samples.Data = golden.Input("voice/"+name+"/sound", 8*9*16)
		mask := &picture.Mask{B: 1, Y: 9, X: 16, Data: slices.Repeat([]float32{1}, 9*16)}
		copy(mask.Data, slices.Repeat([]float32{0.25}, 16))
		sound.NoiseMask = mask
		video.NoiseMask = &picture.Mask{B: 1, Y: 1, X: 1, Data: []float32{1}}
	}
	g, values := newGraph(), map[string]given{
		"Sigmas": {"SIGMAS", value.Sigmas(r.Sigmas)}, "Video": {"LATENT", video}, "Sound": {"LATENT", sound},
		"Voice": {"AUDIO", &value.Audio{B: 1, C: r.Channels, N: r.Samples, Rate: 16000, Data: wave}},
	}
	for side, rows := range map[string]int{"positive": 6, "negative": 4} {
		data := golden.Input(fmt.Sprintf("guides/%s/%s", r.Model, side), rows*r.Width)
		values[side] = given{"CONDITIONING", value.Conditioning{{
			Entry: dit.Entry{Context: dit.Array{Rows: rows, Cols: r.Width, Data: data}}, MaskStrength: 1,
		}}}
	}
	model := g.add("LTXVReferenceAudio", "model",
		g.add("UNETLoader", "unet_name", r.Model+".safetensors", "weight_dtype", "default"),
		"positive", g.add("positive"), "negative", g.add("negative"), "reference_audio", g.add("Voice"), "audio_vae",
		g.add("LTXVAudioVAELoader", "ckpt_name", "ltxaudio-a.safetensors"), "identity_guidance_scale", r.Scale,
		"start_percent", r.Start, "end_percent", r.End)
	text := g.add("LTXVConditioning", "positive", second(model), "negative", third(model), "frame_rate", 24.0)
	guider := g.add("BasicGuider", "model", model, "conditioning", text)
	if r.CFG > 0 {
		guider = g.add("CFGGuider", "model", model, "positive", text, "negative", second(text), "cfg", r.CFG)
	}
	out := g.add("SamplerCustomAdvanced", "noise", g.add("RandomNoise", "noise_seed", int64(7)), "guider", guider,
		"sampler", g.add("KSamplerSelect", "sampler_name", "euler"), "sigmas", g.add("Sigmas"), "latent_image",
		g.add("LTXVConcatAVLatent", "video_latent", g.add("Video"), "audio_latent", g.add("Sound")))
	apart := g.add("LTXVSeparateAVLatent", "av_latent", out)
	g.add("Keep", "latent", apart, "as", "video")
	g.add("Keep", "latent", second(apart), "as", "sound")
	return g, values
}

// TestLTXVoices compares videos and sounds in the voice of a reference, made on plans of every kind, with ComfyUI's:
// with guidance by the voice all the time, in the beginning, in the end and never, beside CFG and alone.
func TestLTXVoices(t *testing.T) {
	var runs map[string]voiceRun
	check(t, golden.JSON("ltx/voice.json", &runs))
	roots := ltxSoundRoots(t)
	for _, model := range []string{"ltx-a", "ltx-b"} {
		writeGoldenModel(t, model, "", filepath.Join(roots.Models[0], "diffusion_models", model+".safetensors"))
	}
	for _, name := range []string{"guided", "early", "basic", "plain"} {
		r, ok := runs[name]
		if !ok {
			t.Fatalf("%s is not recorded", name)
		}
		plans := []string{
			"", "ring=2", "ulysses=2", "ring=2,ulysses=2", "cfg=2", "pipe=2,patches=1", "ring=2,deterministic=on",
		}
		switch {
		case testing.Short():
			plans = plans[:1]
		case name == "basic":
			plans = plans[:2]
		}
		for _, plan := range plans {
			g, values := r.graph(t, name)
			got := map[string]*value.Latent{}
			runner, err := graph.NewRunner(graph.Config{
				Engine: engineOf(t, fastOps), Roots: roots, Catalogue: All(giving(values, got)...),
			})
			check(t, err)
			defer runner.Close()
			_, err = runner.Run(t.Context(), graph.Job{ID: "g", Workflow: g.workflow(t), Plan: plan}, nil)
			if err != nil {
				t.Fatalf("%s, plan %q: %v", name, plan, err)
			}
			for part, l := range got {
				want := tensorOf(t, "ltx/voice.safetensors", name+"#"+part)
				if worst, err := goldenrun.Compare(l.Samples.Data, want, 1e-4); err != nil {
					t.Errorf("%s, plan %q, %s: %v", name, plan, part, err)
				} else {
					t.Logf("%s, plan %q, %s: %.2g", name, plan, part, worst)
				}
			}
		}
	}
}

// TestLTXVoiceRows compares the rows that a reference becomes with ComfyUI's, of sounds with one and two channels, of
// which one ends in the middle of a row.
func TestLTXVoiceRows(t *testing.T) {
	var runs map[string]voiceRun
	check(t, golden.JSON("ltx/voice.json", &runs))
	for name, r := range runs {
		var rows dit.Array
		runner := ltxSoundRunner(t, graph.Class{
			Name: "Voice", Fresh: true, Outputs: graph.Slots("AUDIO"),
			Run: func(*graph.Call) ([]any, error) {
				data := golden.Fill("input:voice/"+name, r.Channels*r.Samples, 1, 0)
				return []any{&value.Audio{B: 1, C: r.Channels, N: r.Samples, Rate: 16000, Data: data}}, nil
			},
		}, graph.Class{
			Name: "Text", Outputs: graph.Slots("CONDITIONING"), Run: func(*graph.Call) ([]any, error) {
				return []any{value.Conditioning{{}}}, nil
			},
		}, graph.Class{
			Name: "Model", Outputs: graph.Slots("MODEL"), Run: func(*graph.Call) ([]any, error) {
				return []any{analyticModel(t)}, nil
			},
		}, graph.Class{
			Name: "Look", Output: true, Inputs: []graph.Input{graph.Bare("text", "CONDITIONING")},
			Run: func(c *graph.Call) ([]any, error) {
				rows = c.Conditioning("text")[0].SoundReference
				return nil, nil
			},
		})
		g := newGraph()
		text := g.add("Text")
		node := g.add("LTXVReferenceAudio", "model", g.add("Model"), "positive", text, "negative", text, "reference_audio",
			g.add("Voice"), "audio_vae", g.add("LTXVAudioVAELoader", "ckpt_name", "ltxaudio-a.safetensors"),
			"identity_guidance_scale", 3.0, "start_percent", 0.0, "end_percent", 1.0)
		g.add("Look", "text", third(node))
		_, err := runner.Run(t.Context(), graph.Job{ID: "g", Workflow: g.workflow(t)}, nil)
		check(t, err)
		if rows.Rows != r.Tokens[1] || rows.Cols != r.Tokens[2] {
			t.Fatalf("%s: rows [%d, %d], want %v", name, rows.Rows, rows.Cols, r.Tokens[1:])
		}
		if rel := relative(rows.Data, tensorOf(t, "ltx/voice.safetensors", name+"#tokens")); !(rel <= 2e-5) {
			t.Errorf("%s: relative error %.3g, bound 2e-5", name, rel)
		}
	}
}

// TestLTXVoiceRefusals checks the errors for a latent without sound, a guider with three sides, and several voices.
func TestLTXVoiceRefusals(t *testing.T) {
	var runs map[string]voiceRun
	check(t, golden.JSON("ltx/voice.json", &runs))
	roots := ltxSoundRoots(t)
	writeGoldenModel(t, "ltx-a", "", filepath.Join(roots.Models[0], "diffusion_models", "ltx-a.safetensors"))
	for want, change := range map[string]func(node func(class string) *pyjson.Object, values map[string]given){
		"a latent with sound (LTXVConcatAVLatent)": func(node func(string) *pyjson.Object, _ map[string]given) {
			node("SamplerCustomAdvanced").In("inputs").Set("latent_image",
				node("LTXVConcatAVLatent").In("inputs").At("video_latent"))
		},
		"DualCFGGuider takes no identity guidance": func(node func(string) *pyjson.Object, _ map[string]given) {
			in := node("CFGGuider").In("inputs")
			in.SetAll("cond1", in.At("positive"), "cond2", in.At("positive"), "cfg_conds", 2.0, "cfg_cond2_negative", 2.0,
				"style", "regular")
			node("CFGGuider").Set("class_type", "DualCFGGuider")
		},
		"reference_audio: has 2 sounds: want one": func(_ func(string) *pyjson.Object, values map[string]given) {
			a := values["Voice"].value.(*value.Audio)
			values["Voice"] = given{"AUDIO", &value.Audio{B: 2, C: a.C, N: a.N / 2, Rate: a.Rate, Data: a.Data}}
		},
	} {
		r := runs["guided"]
		g, values := r.graph(t, "guided")
		change(func(class string) *pyjson.Object {
			for _, id := range g.nodes.Keys() {
				if n := g.nodes.At(id).(*pyjson.Object); n.At("class_type") == class {
					return n
				}
			}
			t.Fatalf("no %s", class)
			return nil
		}, values)
		runner, err := graph.NewRunner(graph.Config{
			Engine: engineOf(t, fastOps), Roots: roots, Catalogue: All(giving(values, map[string]*value.Latent{})...),
		})
		check(t, err)
		defer runner.Close()
		_, err = runner.Run(t.Context(), graph.Job{ID: "g", Workflow: g.workflow(t)}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
