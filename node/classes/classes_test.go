package classes

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
	"patchbay/tests/race"
	"patchbay/tests/scratch"
)

// order2 lists classes of latents, images, masks, sigmas and samplers that the catalogue must have.
func order2() []string {
	return strings.Fields(`SamplerCustom DisableNoise SplitSigmas SplitSigmasDenoise FlipSigmas SetFirstSigma
		ManualSigmas KarrasScheduler ExponentialScheduler
		PolyexponentialScheduler LaplaceScheduler VPScheduler BetaSamplingScheduler SDTurboScheduler SamplerEulerAncestral
		SamplerEulerAncestralCFGPP SamplerLMS
		SamplerDPMPP_2M_SDE SamplerDPMPP_SDE SamplerDPMPP_3M_SDE SamplerDPMPP_2S_Ancestral SamplerDPMAdaptative
		SamplerER_SDE SamplerSASolver SamplerSEEDS2 DualCFGGuider
		ModelSamplingSD3 ModelSamplingAuraFlow FluxDisableGuidance CLIPSetLastLayer ConditioningConcat ConditioningAverage
		ConditioningSetArea ConditioningSetAreaPercentage
		ConditioningSetMask SetLatentNoiseMask VAEEncodeForInpaint InpaintModelConditioning DifferentialDiffusion
		VAEDecodeTiled VAEEncodeTiled LatentUpscale LatentUpscaleBy
		LatentBlend LatentComposite LatentCrop LatentFlip LatentRotate RepeatLatentBatch LatentFromBatch ImageScale
		ImageScaleBy ImageScaleToTotalPixels ImagePadForOutpaint
		ImageInvert ImageBatch ImageCrop EmptyImage ImageBlend SolidMask InvertMask MaskToImage ImageToMask LoadImageMask
		GrowMask FeatherMask PrimitiveInt PrimitiveFloat
		PrimitiveString PrimitiveStringMultiline PrimitiveBoolean`)
}

// TestEveryClassHasARecordedEntry checks that a recorded entry exists for every class of order2.
func TestEveryClassHasARecordedEntry(t *testing.T) {
	raw, err := golden.Read("server/object_info.json")
	check(t, err)
	decoded, err := pyjson.Decode(raw)
	check(t, err)
	server, _ := decoded.(*pyjson.Object).Get("classes")
	cat := All()
	if len(order2()) != 71 {
		t.Errorf("the list has %d classes, want 71", len(order2()))
	}
	for _, name := range order2() {
		if _, recorded := server.(*pyjson.Object).Get(name); cat.Class(name) == nil || !recorded {
			t.Errorf("class %s: in the catalogue %v, in a record %v", name, cat.Class(name) != nil, recorded)
		}
	}
}

// TestCLIPSetLastLayer compares with direct calls of the text encoder: -1 is the last layer, -2 the one before, and a
// number beyond the layers means the last again.
func TestCLIPSetLastLayer(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	run, err := graph.NewRunner(graph.Config{Engine: refEngine(t), Roots: demoRoots(), Catalogue: All()})
	check(t, err)
	defer run.Close()
	clip := exec(t, run, "CLIPLoader", map[string]any{"clip_name": "demo_clip.safetensors", "type": "stable_diffusion"})
	encode := func(clip any) []float32 {
		c := exec(t, run, "CLIPTextEncode", map[string]any{"text": "a red heart", "clip": clip})
		return values(t, c.([]any)[0].([]any)[0])
	}
	stopped := func(layer int64) []float32 {
		return encode(exec(t, run, "CLIPSetLastLayer", map[string]any{"clip": clip, "stop_at_clip_layer": layer}))
	}
	direct := func(layer int) []float32 {
		file, err := safetensors.Open(filepath.Join(demoRoots().Models[0], "text_encoders", "demo_clip.safetensors"))
		check(t, err)
		defer file.Close()
		config := []byte(file.Metadata()["config"])
		ops := ref.New()
		net, err := text.OpenCLIP(ops, weights.FromFile(file), config)
		check(t, err)
		defer net.Close()
		l, err := tokenizer.CLIPL().WithConfig(config)
		check(t, err)
		vocabulary, _, err := tokenizer.Find("the demo",
			filepath.Join(demoRoots().Models[0], "tokenizers", "demo_clip.tokenizer.json"))
		check(t, err)
		p, err := l.Prompt(vocabulary, "a red heart", nil)
		check(t, err)
		out, err := net.Encode(text.Env{Ops: ops}, p.Chunks, text.Form{Layer: layer, Norm: true, Project: true})
		check(t, err)
		return out.Context.Data
	}
	plain := encode(clip)
	for layer, want := range map[int64][]float32{-1: plain, -24: plain, -2: direct(-2)} {
		if got := stopped(layer); relative(got, want) > 1e-6 {
			t.Errorf("stop_at_clip_layer %d: relative error %.3g", layer, relative(got, want))
		}
	}
	if relative(direct(-2), plain) < 1e-3 {
		t.Error("layers -1 and -2 of the demo are the same: this test proves nothing")
	}
}

// TestLoadImageMask checks each channel of files with and without alpha.
func TestLoadImageMask(t *testing.T) {
	dir := t.TempDir()
	save := func(name string, im image.Image) {
		var b bytes.Buffer
		check(t, png.Encode(&b, im))
		scratch.Write(t, filepath.Join(dir, name), b.Bytes())
	}
	soft, hard := image.NewNRGBA(image.Rect(0, 0, 3, 2)), image.NewGray(image.Rect(0, 0, 3, 2))
	for i := range 6 {
		soft.SetNRGBA(i%3, i/3, color.NRGBA{uint8(40 * i), 7, uint8(255 - i), uint8(50 * i)})
		hard.SetGray(i%3, i/3, color.Gray{uint8(30 * i)})
	}
	save("soft.png", soft)
	save("hard.png", hard)
	run, err := graph.NewRunner(graph.Config{Roots: files.Roots{Input: dir}, Catalogue: All()})
	check(t, err)
	for _, c := range []struct {
		file, channel string
		want          func(i int) float64
	}{
		{"soft.png", "alpha", func(i int) float64 { return 1 - float64(50*i)/255 }},
		{"soft.png", "red", func(i int) float64 { return float64(40*i) / 255 }},
		{"soft.png", "blue", func(i int) float64 { return float64(255-i) / 255 }},
		{"hard.png", "green", func(i int) float64 { return float64(30*i) / 255 }},
		{"hard.png", "alpha", func(int) float64 { return 0 }},
	} {
		m := exec(t, run, "LoadImageMask", map[string]any{"image": c.file, "channel": c.channel}).(*array.Tensor)
		shape := []int{1, 2, 3}
		if c.file == "hard.png" && c.channel == "alpha" {
			shape = []int{1, 64, 64} // ComfyUI 0.33.0: LoadImage's mask
		}
		if !slices.Equal(m.Shape, shape) {
			t.Errorf("%s %s: shape %v, want %v", c.file, c.channel, m.Shape, shape)
			continue
		}
		for i, got := range values(t, m) {
			if !(math.Abs(float64(got)-c.want(i)) <= 1e-6) {
				t.Errorf("%s %s: pixel %d is %v, want %v", c.file, c.channel, i, got, c.want(i))
			}
		}
	}
	_, err = run.Exec(t.Context(), graph.ExecRequest{
		Class:  "LoadImageMask",
		Inputs: map[string]any{"image": "gone.png", "channel": "red"},
	}, nil)
	if err == nil || !strings.Contains(err.Error(), "Invalid image file: gone.png") {
		t.Errorf("a missing file: got %v", err)
	}
}
