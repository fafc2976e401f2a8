package classes

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/tests/golden"
)

// guidedRun is one run of ltx/guides.json.
type guidedRun struct {
	Model  string
	Latent []int
	Guides [][]any // shape of pictures, where they begin, strength, shape of their mask, factor
	Sigmas []float32
	Width  int
}

// guidedRuns returns the recorded runs, and a folder with their networks and autoencoder.
func guidedRuns(t *testing.T) (runs map[string]guidedRun, root string) {
	t.Helper()
	check(t, golden.JSON("ltx/guides.json", &runs))
	root = t.TempDir()
	for name, r := range runs {
		if r.Model == "" {
			delete(runs, name) // pictures that are compressed
		}
	}
	for _, model := range []string{"ltx-a", "ltx-b"} {
		writeGoldenModel(t, model, "", filepath.Join(root, "diffusion_models", model+".safetensors"))
	}
	writeGoldenModel(t, "ltxvae-a", "", filepath.Join(root, "vae", "ltx.safetensors"))
	return runs, root
}

// graph returns the nodes of a run up to its end, with every way to add guides that was recorded.
func (r *guidedRun) graph(t *testing.T, name string) (*graphMaker, map[string]given) {
	t.Helper()
	g, values := newGraph(), map[string]given{
		"Sigmas": {"SIGMAS", value.Sigmas(r.Sigmas)}, "AudioVAE": {"VAE", ltxSoundHandle()},
	}
	frames, y, x := int64(r.Latent[0]), int64(r.Latent[1]), int64(r.Latent[2])
	for side, rows := range map[string]int{"positive": 6, "negative": 4} {
		data := golden.Input(fmt.Sprintf("guides/%s/%s", r.Model, side), rows*r.Width)
		values[side] = given{"CONDITIONING", value.Conditioning{{
			Entry: dit.Entry{Context: dit.Array{Rows: rows, Cols: r.Width, Data: data}}, MaskStrength: 1,
		}}}
	}
	text := g.add("LTXVConditioning", "positive", g.add("positive"), "negative", g.add("negative"), "frame_rate", 24.0)
	positive, negative := text, second(text)
	latent := g.add("EmptyLTXVLatentVideo", "width", 32*x, "height", 32*y, "length", 8*frames-7, "batch_size", int64(1))
	vae := g.add("VAELoader", "vae_name", "ltx.safetensors")
	for i, guide := range r.Guides {
		shape := guide[0].([]any)
		im := &picture.Image{B: int(shape[0].(float64)), Y: int(shape[1].(float64)), X: int(shape[2].(float64)), C: 3}
		im.Data = golden.Fill(fmt.Sprintf("input:guides/%s/%d", name, i), im.B*im.Y*im.X*im.C, 1, 0.5)
		class := fmt.Sprintf("Pictures%d", i)
		values[class] = given{"IMAGE", im}
		inputs := []any{}
		if len(guide) > 4 {
			says := value.Guiding{Downscale: int(guide[4].(float64))}
			values[class+"LoRA"] = given{"IC_LORA_PARAMETERS", says}
			inputs = append(inputs, "iclora_parameters", g.add(class+"LoRA"))
		}
		if len(guide) > 3 && guide[3] != nil {
			shape := guide[3].([]any)
			m := &picture.Mask{B: int(shape[0].(float64)), Y: int(shape[1].(float64)), X: int(shape[2].(float64))}
			for _, v := range golden.Fill(fmt.Sprintf("input:guides/%s/%d/mask", name, i), m.B*m.Y*m.X, 1.6, 0.5) {
				m.Data = append(m.Data, min(max(v, 0), 1))
			}
			values[class+"Mask"] = given{"MASK", m}
			inputs = append(inputs, "attention_mask", g.add(class+"Mask"))
		}
		inputs = append(inputs, "positive", positive, "negative", negative, "vae", vae, "latent", latent, "image",
			g.add(class), "frame_idx", int64(guide[1].(float64)), "strength", guide[2].(float64))
		added := g.add("LTXVAddGuide", inputs...)
		positive, negative, latent = added, second(added), third(added)
	}
	g.add("Keep", "latent", latent, "as", "latent")
	sound := g.add("LTXVEmptyLatentAudio", "frames_number", 8*frames-7, "frame_rate", int64(24), "batch_size", int64(1),
		"audio_vae", g.add("AudioVAE"))
	out := g.add("SamplerCustomAdvanced", "noise", g.add("RandomNoise", "noise_seed", int64(7)), "guider",
		g.add("CFGGuider", "model", g.add("UNETLoader", "unet_name", r.Model+".safetensors", "weight_dtype", "default"),
			"positive", positive, "negative", negative, "cfg", 3.0),
		"sampler", g.add("KSamplerSelect", "sampler_name", "euler"), "sigmas", g.add("Sigmas"), "latent_image",
		g.add("LTXVConcatAVLatent", "video_latent", latent, "audio_latent", sound))
	apart := g.add("LTXVSeparateAVLatent", "av_latent", out)
	cropped := g.add("LTXVCropGuides", "positive", positive, "negative", negative, "latent", apart)
	g.add("Keep", "latent", third(cropped), "as", "video")
	g.add("Keep", "latent", second(apart), "as", "sound")
	return g, values
}

// third returns a link to the third output of a node.
func third(link []any) []any { return []any{link[0], int64(2)} }

// TestLTXGuides compares latents with guides, and videos and sounds that are made of them on plans of every kind, with
// ComfyUI's: at the beginning, at the end and in the middle, single pictures and videos, with all, less and more than
// the attention that they get by themselves, and with masks of more and of fewer pictures.
func TestLTXGuides(t *testing.T) {
	runs, root := guidedRuns(t)
	if len(runs) != 8 {
		t.Fatalf("%d runs, want 8", len(runs))
	}
	for name, r := range runs {
		plans := []string{"", "ring=2", "ulysses=2", "ring=2,ulysses=2", "cfg=2", "pipe=2,patches=1"}
		switch {
		case testing.Short():
			plans = plans[:1]
		case name != "weaker" && name != "masked-clips" && name != "small-both":
			plans = plans[:2]
		}
		for _, plan := range plans {
			g, values := r.graph(t, name)
			got := map[string]*value.Latent{}
			runner, err := graph.NewRunner(graph.Config{
				Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(values, got)...),
			})
			check(t, err)
			defer runner.Close()
			_, err = runner.Run(t.Context(), graph.Job{ID: "g", Workflow: g.workflow(t), Plan: plan}, nil)
			if err != nil {
				t.Fatalf("%s, plan %q: %v", name, plan, err)
			}
			var stored []float32
			for i := 0; i < len(got["latent"].Samples.Data); i += 3 {
				stored = append(stored, got["latent"].Samples.Data[i])
			}
			near := func(part string, values []float32, bound float64) {
				t.Helper()
				worst, err := goldenrun.Compare(values, tensorOf(t, "ltx/guides.safetensors", name+"#"+part), bound)
				if err != nil {
					t.Errorf("%s, plan %q, %s: %v", name, plan, part, err)
				} else {
					t.Logf("%s, plan %q, %s: %.2g", name, plan, part, worst)
				}
			}
			near("latent", stored, 2e-5)
			near("mask", got["latent"].NoiseMask.Data, 1e-6)
			near("video", got["video"].Samples.Data, 1e-4)
			near("sound", got["sound"].Samples.Data, 1e-4)
			if frames, m := r.Latent[0], got["video"].NoiseMask; m.B != frames || got["video"].Samples.T != frames {
				t.Errorf("%s: %d frames and a mask of %d, want %d", name, got["video"].Samples.T, m.B, frames)
			}
		}
	}
}

// inputsOf returns the inputs of the first node of a class.
type inputsOf func(class string) *pyjson.Object

// TestLTXGuideRefusals checks the errors for guides that go beyond the video, for one that one side alone knows, for
// latents without the guides that a text knows, and for what is not supported.
func TestLTXGuideRefusals(t *testing.T) {
	runs, root := guidedRuns(t)
	run := runs["ends"]
	for want, change := range map[string]func(*guidedRun, inputsOf){
		"frame_idx: 1 pictures from 99 on go beyond the latent's 3 frames": func(r *guidedRun, _ inputsOf) {
			r.Guides = [][]any{{r.Guides[0][0], 99.0, 1.0}}
		},
		"strength: 1.5: want 0 to 1 with iclora_parameters": func(r *guidedRun, _ inputsOf) {
			r.Latent, r.Guides = []int{3, 2, 4}, [][]any{{r.Guides[0][0], 0.0, 1.5, nil, 2.0}}
		},
		"want the same for positive and negative": func(_ *guidedRun, inputs inputsOf) {
			inputs("CFGGuider").Set("negative", inputs("LTXVAddGuide").At("negative"))
		},
		"sample the latent that the guides were added to": func(_ *guidedRun, inputs inputsOf) {
			inputs("EmptyLTXVLatentVideo").Set("length", int64(9))
			inputs("LTXVConcatAVLatent").Set("video_latent", inputs("LTXVAddGuide").At("latent"))
		},
		"that 2 guide it: want the latent that they were": func(_ *guidedRun, inputs inputsOf) {
			inputs("EmptyLTXVLatentVideo").Set("length", int64(9))
			inputs("LTXVCropGuides").Set("latent", inputs("LTXVAddGuide").At("latent"))
		},
	} {
		r := run
		change(&r, func(string) *pyjson.Object { return pyjson.NewObject("negative", nil, "latent", nil) })
		g, values := r.graph(t, "ends")
		change(&r, func(class string) *pyjson.Object {
			for _, id := range g.nodes.Keys() {
				if n := g.nodes.At(id).(*pyjson.Object); n.At("class_type") == class {
					return n.At("inputs").(*pyjson.Object)
				}
			}
			t.Fatalf("no %s", class)
			return nil
		})
		runner, err := graph.NewRunner(graph.Config{
			Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}},
			Catalogue: All(giving(values, map[string]*value.Latent{})...),
		})
		check(t, err)
		defer runner.Close()
		_, err = runner.Run(t.Context(), graph.Job{ID: "g", Workflow: g.workflow(t)}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestGuidesOfLoRAs compares what metadata of LoRAs say of guides with ComfyUI's rule: the last LoRA with metadata
// counts, numbers are rounded to even and at least 1. A factor of 1 changes nothing, others are refused for frames
// whose sides are no multiples of it.
func TestGuidesOfLoRAs(t *testing.T) {
	runs, root := guidedRuns(t)
	run := runs["ends"]
	network := filepath.Join(root, "diffusion_models", run.Model+".safetensors")
	at := func(name string) string { return filepath.Join(root, "loras", name+".safetensors") }
	for name, factor := range map[string]string{
		"two": "2", "even": "2.5", "odd": "3.5", "small": "0.2", "words": "two", "nan": "nan", "none": "",
	} {
		meta := map[string]string{"format": "pt"}
		if factor != "" {
			meta["modelspec.reference_downscale_factor"] = factor
		}
		writeLoRA(t, at(name), network, "diffusion_model.", meta)
	}
	writeLoRA(t, at("bare"), network, "diffusion_model.", nil)
	for names, want := range map[string]int{
		"": 1, "two": 2, "even": 2, "odd": 4, "small": 1, "words": 1, "nan": 1, "none": 1, "bare": 1, "two none": 1,
		"two bare": 2, "odd two": 2,
	} {
		if testing.Short() && want == 1 && names != "two none" {
			continue // long: TestLTXGuides samples without a LoRA, the others show the rule
		}
		var got value.Guiding
		look := graph.Class{
			Name: "Look", Output: true, Inputs: []graph.Input{graph.Bare("says", "IC_LORA_PARAMETERS")},
			Run: func(c *graph.Call) ([]any, error) {
				got = graph.Arg[value.Guiding](c, "says")
				return nil, nil
			},
		}
		g, values := run.graph(t, "ends")
		model := g.add("UNETLoader", "unet_name", run.Model+".safetensors", "weight_dtype", "default")
		for _, name := range strings.Fields(names) {
			model = g.add("LoraLoaderModelOnly", "model", model, "lora_name", name+".safetensors", "strength_model", 1.0)
		}
		says := g.add("GetICLoRAParameters", "iclora_model", model)
		g.add("Look", "says", says)
		for _, id := range g.nodes.Keys() {
			if n := g.nodes.In(id); n.Text("class_type") == "LTXVAddGuide" {
				n.In("inputs").Set("iclora_parameters", says)
			}
		}
		latents := map[string]*value.Latent{}
		runner, err := graph.NewRunner(graph.Config{
			Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}},
			Catalogue: All(append(giving(values, latents), look)...),
		})
		check(t, err)
		defer runner.Close()
		_, err = runner.Run(t.Context(), graph.Job{ID: "g", Workflow: g.workflow(t)}, nil)
		var f *fault.Error
		switch {
		case want == 1:
			check(t, err)
			video := latents["video"].Samples.Data // of the model without the LoRA
			_, err := goldenrun.Compare(video, tensorOf(t, "ltx/guides.safetensors", "ends#video"), 1e-4)
			check(t, err)
		case !errors.As(err, &f) || f.Field != "iclora_parameters" || f.Code != fault.BadInput:
			t.Errorf("%q: got %v, want a refusal of iclora_parameters", names, err)
		}
		if got.Downscale != want && (want == 1 || got.Downscale != 0) {
			t.Errorf("%q: %d, want %d", names, got.Downscale, want)
		}
		if f != nil && !strings.Contains(f.Text+f.Details, fmt.Sprintf("%d times", want)) {
			t.Errorf("%q: %v, want a factor of %d", names, f, want)
		}
	}
}

// TestLTXPicturesAreCompressed compares pictures that are compressed as frames of a video with ComfyUI's: with another
// version of the encoder they may differ a little, with the colours in another place or another quality they would by
// much more. A compression of 0 leaves them as they are.
func TestLTXPicturesAreCompressed(t *testing.T) {
	ffmpegNeeded(t)
	im := &picture.Image{B: 2, Y: 66, X: 73, C: 3}
	for y := range im.Y {
		for x := range im.X {
			im.Data = append(im.Data, float32(x)/72, float32(y)/65, float32((x+y)%40)/40)
		}
	}
	for _, v := range slices.Clone(im.Data) {
		im.Data = append(im.Data, 1-v)
	}
	compressed := func(im *picture.Image, crf int64) (*picture.Image, error) {
		out, _, err := onValues(t, files.Roots{}, "LTXVPreprocess", map[string]any{"image": im, "img_compression": crf})
		if err != nil {
			return nil, err
		}
		return out[0].(*picture.Image), nil
	}
	for _, crf := range []int64{18, 35} {
		got, err := compressed(im, crf)
		check(t, err)
		if got.B != 2 || got.Y != 66 || got.X != 72 || got.C != 3 {
			t.Fatalf("%d pictures of %d x %d with %d channels, want 2 of 66 x 72 with 3", got.B, got.Y, got.X, got.C)
		}
		var stored []float32
		for i := 0; i < len(got.Data); i += 11 {
			stored = append(stored, got.Data[i])
		}
		want := tensorOf(t, "ltx/guides.safetensors", fmt.Sprintf("compressed/%d", crf))
		if d := apart(stored, want); !(d <= 0.7/255) {
			t.Errorf("compression %d: %.3g levels apart on average, bound 0.7", crf, 255*d)
		}
	}
	got, err := compressed(im, 0)
	check(t, err)
	if !slices.Equal(got.Data, im.Data) {
		t.Error("a compression of 0 changes a picture")
	}
	_, err = compressed(withAlpha(im), 18)
	var f *fault.Error
	if !errors.As(err, &f) || f.Field != "image" || !strings.Contains(f.Text, "4 channels of 66 x 73") {
		t.Errorf("pictures with alpha: got %v", err)
	}
}
