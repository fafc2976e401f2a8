package classes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/models/goldenrun"
	"patchbay/models/sampling"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// ltxRun is one case of tests/golden/ltx/e2e.json or cache.json.
type ltxRun struct {
	Model    string
	Nodes    string // begins with EmptyLTXVLatentVideo and its inputs
	Sigmas   []float32
	CFG      float64
	Sampler  string
	Seed     uint64
	Rate     int64 `json:"frame_rate"`
	Positive wanText
	Negative wanText
	First    []any    `json:"first_latent_frame"`
	Mask     *float32 `json:"mask_of_first_frame"`

	Cache     string  // easy or lazy; empty: the model has none
	Threshold float64 `json:"reuse_threshold"`
	Start     float64 `json:"start_percent"`
	End       float64 `json:"end_percent"`
}

// TestLTXRuns compares whole runs of videos with sound with ComfyUI's: guided and distilled, a first frame that is
// kept, and one that is kept in part. Plans that split a run give the same.
func TestLTXRuns(t *testing.T) {
	compareLTX(t, "ltx/e2e", []string{"", "ulysses=2", "pipe=2,patches=1,ring=2"})
}

// TestCachesBesideSound compares whole runs of videos with sound that reuse predictions: EasyCache goes by the change
// of the video, LazyCache by that of both.
func TestCachesBesideSound(t *testing.T) {
	compareLTX(t, "ltx/cache", []string{"", "cfg=2,ulysses=2"})
}

// compareLTX compares the runs of a file, by all plans or with -short by the first one alone.
func compareLTX(t *testing.T, file string, plans []string) {
	t.Helper()
	var runs map[string]ltxRun
	check(t, golden.JSON(file+".json", &runs))
	root := t.TempDir()
	for _, m := range []string{"ltx-a", "ltx-b", "ltx-c"} {
		writeGoldenModel(t, m, "", filepath.Join(root, "diffusion_models", m+".safetensors"))
	}
	engine := engineOf(t, fastOps)
	for name, run := range runs {
		t.Run(name, func(t *testing.T) {
			for _, plan := range plans {
				if plan == "" || !testing.Short() { // TestNetworksWithSoundBeside has all plans
					run.compare(t, file, func(w ltxGraph, got map[string]*value.Latent) {
						runner, err := graph.NewRunner(graph.Config{
							Engine: engine, Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(w.values, got)...),
						})
						check(t, err)
						defer runner.Close()
						job := graph.Job{ID: "w", Workflow: w.workflow(t), Plan: plan}
						if _, err := runner.Run(context.Background(), job, nil); err != nil {
							t.Fatalf("plan %q: %v", plan, err)
						}
					}, name, plan)
				}
			}
		})
	}
}

// ltxGraph is a workflow and the values that its nodes without a class give.
type ltxGraph struct {
	*graphMaker
	values map[string]given
}

func (run *ltxRun) compare(t *testing.T, file string, execute func(ltxGraph, map[string]*value.Latent),
	name, plan string,
) {
	t.Helper()
	got := map[string]*value.Latent{}
	g := ltxGraph{newGraph(), map[string]given{
		"Positive": {"CONDITIONING", run.Positive.conditioning()}, "Negative": {"CONDITIONING", run.Negative.conditioning()},
		"Sigmas": {"SIGMAS", value.Sigmas(run.Sigmas)}, "AudioVAE": {"VAE", ltxSoundHandle()},
	}}
	var width, height, length, batch int64
	if _, err := fmt.Sscanf(run.Nodes, "EmptyLTXVLatentVideo %d %d %d %d", &width, &height, &length, &batch); err != nil {
		t.Fatal(err)
	}
	video := g.add("EmptyLTXVLatentVideo", "width", width, "height", height, "length", length, "batch_size", batch)
	if run.First != nil {
		g.values["Video"] = given{"LATENT", run.begun(t, int(height)/32, int(width)/32, (int(length)-1)/8+1)}
		video = g.add("Video")
	}
	sound := g.add("LTXVEmptyLatentAudio", "frames_number", length, "frame_rate", run.Rate, "batch_size", batch,
		"audio_vae", g.add("AudioVAE"))
	joined := g.add("LTXVConcatAVLatent", "video_latent", video, "audio_latent", sound)
	text := g.add("LTXVConditioning", "positive", g.add("Positive"), "negative", g.add("Negative"), "frame_rate",
		float64(run.Rate))
	model := g.add("UNETLoader", "unet_name", run.Model+".safetensors", "weight_dtype", "default")
	if class := map[string]string{"easy": "EasyCache", "lazy": "LazyCache"}[run.Cache]; class != "" {
		model = g.add(class, "model", model, "reuse_threshold", run.Threshold, "start_percent", run.Start, "end_percent",
			run.End, "verbose", false)
	}
	out := g.add("SamplerCustomAdvanced", "noise", g.add("RandomNoise", "noise_seed", run.Seed), "guider",
		g.add("CFGGuider", "model", model, "positive", text, "negative", second(text), "cfg", run.CFG),
		"sampler", g.add("KSamplerSelect", "sampler_name", run.Sampler), "sigmas", g.add("Sigmas"), "latent_image", joined)
	apart := g.add("LTXVSeparateAVLatent", "av_latent", out)
	g.add("Keep", "latent", apart, "as", "video")
	g.add("Keep", "latent", second(apart), "as", "audio")
	execute(g, got)
	for _, part := range []string{"video", "audio"} {
		want := tensorOf(t, file+".safetensors", name+"#"+part)
		bound := 1e-4
		if run.Sampler != "euler" {
			bound = 2e-4
		}
		if worst, err := goldenrun.Compare(got[part].Samples.Data, want, bound); err != nil {
			t.Errorf("plan %q, %s: %v", plan, part, err)
		} else {
			t.Logf("plan %q, %s: %.2g", plan, part, worst)
		}
	}
}

// begun returns a latent whose first frame is given, with the mask of the run for that.
func (run *ltxRun) begun(t *testing.T, y, x, frames int) *value.Latent {
	t.Helper()
	const channels = 128
	first := golden.Input(strings.TrimPrefix(run.First[0].(string), "input:"), channels*y*x)
	l := request.NewLatent(1, channels, frames*y, x)
	l.T = frames
	for c := range channels {
		copy(l.Data[c*frames*y*x:], first[c*y*x:(c+1)*y*x])
	}
	mask := &picture.Mask{B: frames, Y: 1, X: 1, Data: slices.Repeat([]float32{1}, frames)}
	mask.Data[0] = *run.Mask
	return &value.Latent{Samples: l, NoiseMask: mask}
}

// TestLTXVSchedules compares the node's sigmas with ComfyUI's, for a latent and without one.
func TestLTXVSchedules(t *testing.T) {
	var want map[string]struct{ Sigmas []float32 }
	check(t, golden.JSON("ltx/sigmas.json", &want))
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	n := 0
	for name, w := range want {
		parts := strings.Split(name, "/")
		if parts[0] != "LTXVScheduler" {
			continue // TestTimeLine has the others
		}
		n++
		var steps int64
		in := map[string]any{"stretch": parts[4] == "True"}
		fmt.Sscan(parts[1], &steps)
		in["steps"] = steps
		for field, text := range map[string]string{"max_shift": parts[2], "base_shift": parts[3], "terminal": parts[5]} {
			var v float64
			fmt.Sscan(text, &v)
			in[field] = v
		}
		if parts[6] != "none" {
			in["latent"] = latentValue(ramp(0, 1, 128, 2, 3, 4))
		}
		got := values(t, exec(t, run, "LTXVScheduler", in))
		if len(got) != len(w.Sigmas) {
			t.Fatalf("%s: got %v, want %v", name, got, w.Sigmas)
		}
		for i, v := range w.Sigmas {
			if d := got[i] - v; !(max(d, -d) <= 4*1.2e-7*max(v, 0.1)) {
				t.Errorf("%s: sigma %d is %v, want %v", name, i, got[i], v)
			}
		}
	}
	if n != 24 {
		t.Errorf("%d schedules were compared, want 24", n)
	}
	if _, err := sampling.LTXV(1, 1, new(float64)); err == nil || !strings.Contains(err.Error(), "stretch") {
		t.Errorf("one step: got %v", err)
	}
}

// runLTX executes a workflow with given values and returns the latents that it keeps.
func runLTX(t *testing.T, g *graphMaker, values map[string]given, root string) map[string]*value.Latent {
	t.Helper()
	got := map[string]*value.Latent{}
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(values, got)...),
	})
	check(t, err)
	defer runner.Close()
	if _, err := runner.Run(context.Background(), graph.Job{ID: "w", Workflow: g.workflow(t)}, nil); err != nil {
		t.Fatal(err)
	}
	return got
}

// counting returns a latent of a shape whose values count from first.
func counting(shape []int, first float32) request.Latent {
	n := 1
	for _, s := range shape {
		n *= s
	}
	data := make([]float32, n)
	for i := range data {
		data[i] = first + float32(i)
	}
	l, _ := request.LatentOf(shape, data)
	return l
}

// TestSoundIsJoinedAndSeparated compares latents and masks with those of ComfyUI's nodes: a sound beside a video, in
// place of another one, longer and shorter ones.
func TestSoundIsJoinedAndSeparated(t *testing.T) {
	var recorded struct {
		Join []struct {
			Name              string
			Video, Old, Audio []int
			Mask              []int     `json:"audio_mask"`
			WantVideo         []float32 `json:"video_out"`
			WantAudio         []float32 `json:"audio_out"`
			WantMask          []float32 `json:"audio_mask_out"`
			MaskShape         []int     `json:"audio_mask_shape"`
		}
	}
	check(t, golden.JSON("ltx/nodes.json", &recorded))
	for _, c := range recorded.Join {
		video := &value.Latent{Samples: counting(c.Video, 0)}
		if c.Old != nil {
			video.Samples = request.Join(video.Samples, counting(c.Old, 500))
		}
		audio := &value.Latent{Samples: counting(c.Audio, 1000)}
		if c.Mask != nil {
			audio.NoiseMask = &picture.Mask{B: c.Mask[0], Y: c.Mask[1], X: c.Mask[2]}
			for i := range c.Mask[0] * c.Mask[1] * c.Mask[2] {
				audio.NoiseMask.Data = append(audio.NoiseMask.Data, float32(i%4)/4)
			}
		}
		g := newGraph()
		joined := g.add("LTXVConcatAVLatent", "video_latent", g.add("Video"), "audio_latent", g.add("Audio"))
		apart := g.add("LTXVSeparateAVLatent", "av_latent", joined)
		g.add("Keep", "latent", apart, "as", "video")
		g.add("Keep", "latent", second(apart), "as", "audio")
		got := runLTX(t, g, map[string]given{"Video": {"LATENT", video}, "Audio": {"LATENT", audio}}, t.TempDir())
		v, a := got["video"], got["audio"]
		if !slices.Equal(v.Samples.Data, c.WantVideo) || !slices.Equal(a.Samples.Data, c.WantAudio) {
			t.Errorf("%s: got %v and %v, want %v and %v", c.Name, v.Samples.Data, a.Samples.Data, c.WantVideo, c.WantAudio)
		}
		switch m := a.NoiseMask; {
		case c.WantMask == nil && m == nil:
		case m == nil || c.WantMask == nil:
			t.Errorf("%s: the mask is %v, want %v", c.Name, m, c.WantMask)
		default: // ComfyUI's may have channels, which are alike
			want := c.WantMask[:len(m.Data)]
			if n := len(c.MaskShape); m.Y != c.MaskShape[n-2] || m.X != c.MaskShape[n-1] || !slices.Equal(m.Data, want) {
				t.Errorf("%s: the mask is %v, want %v of %v", c.Name, m, want, c.MaskShape)
			}
			if v.NoiseMask == nil || slices.Min(v.NoiseMask.Data) != 1 {
				t.Errorf("%s: the mask of the video is %v, want ones", c.Name, v.NoiseMask)
			}
		}
	}
}

// TestPicturesInPlaceOfFrames checks that the first frames are the encoded pictures, that the others stay, and that
// masks are those of ComfyUI's node.
func TestPicturesInPlaceOfFrames(t *testing.T) {
	var recorded struct {
		Frames []struct {
			Frames, Pictures int
			Strength         float64
			Mask             []float32
			MaskOut          []float32 `json:"mask_out"`
			Given            []bool
		}
	}
	check(t, golden.JSON("ltx/nodes.json", &recorded))
	root := t.TempDir()
	writeGoldenModel(t, "wan21vae-a", "", filepath.Join(root, "vae", "vae.safetensors"))
	for _, c := range recorded.Frames {
		pictures := (c.Pictures-1)/8*4 + 1 // of this autoencoder, for as many frames
		im := &picture.Image{B: pictures, Y: 24, X: 20, C: 3, Data: golden.Fill("pictures", pictures*24*20*3, 1, 0.5)}
		l := &value.Latent{Samples: counting([]int{2, 16, c.Frames, 2, 2}, 0)}
		if c.Mask != nil {
			l.NoiseMask = &picture.Mask{B: c.Frames, Y: 1, X: 1, Data: c.Mask}
		}
		g := newGraph()
		vae, image := g.add("VAELoader", "vae_name", "vae.safetensors"), g.add("Pictures")
		for as, bypass := range map[string]bool{"out": false, "bypassed": true} {
			g.add("Keep", "latent", g.add("LTXVImgToVideoInplace", "vae", vae, "image", image, "latent", g.add("Begin"),
				"strength", c.Strength, "bypass", bypass), "as", as)
		}
		scaled := g.add("ImageScale", "image", image, "upscale_method", "bilinear", "width", int64(16), "height", int64(16),
			"crop", "center")
		g.add("Keep", "latent", g.add("VAEEncode", "pixels", scaled, "vae", vae), "as", "encoded")
		got := runLTX(t, g, map[string]given{"Pictures": {"IMAGE", im}, "Begin": {"LATENT", l}}, root)
		out, encoded := got["out"].Samples, got["encoded"].Samples
		const frame = 4 // values
		for i, v := range out.Data {
			f, want := i/frame%c.Frames, l.Samples.Data[i]
			if c.Given[f] {
				channel := i / frame / c.Frames % 16
				want = encoded.Data[(channel*max(1, encoded.T)+f)*frame+i%frame]
			}
			if v != want {
				t.Fatalf("%+v: value %d is %v, want %v", c, i, v, want)
			}
		}
		if m := got["out"].NoiseMask; !slices.Equal(m.Data, c.MaskOut) || m.B != c.Frames {
			t.Errorf("%+v: the mask is %v", c, m)
		}
		if got["bypassed"] != l && !slices.Equal(got["bypassed"].Samples.Data, l.Samples.Data) {
			t.Errorf("bypass changed the latent")
		}
	}
}

// TestScalesOfVideoAndSound checks with one step, in which video and sound do not see each other's scale, that each is
// that of a run with its scale for both, and that a latent without sound gets the video's.
func TestScalesOfVideoAndSound(t *testing.T) {
	var runs map[string]ltxRun
	check(t, golden.JSON("ltx/e2e.json", &runs))
	run := runs["ltx/t2v-cfg4-scheduler"]
	root := t.TempDir()
	writeGoldenModel(t, run.Model, "", filepath.Join(root, "diffusion_models", "m.safetensors"))
	values := map[string]given{
		"Positive": {"CONDITIONING", run.Positive.conditioning()}, "Negative": {"CONDITIONING", run.Negative.conditioning()},
		"Sigmas": {"SIGMAS", value.Sigmas{1, 0.5}},
		"Sounding": {"LATENT", &value.Latent{
			Samples: request.Join(counting([]int{1, 128, 2, 2, 2}, 0), counting([]int{1, 8, 3, 16}, 0)),
		}},
		"Silent": {"LATENT", &value.Latent{Samples: counting([]int{1, 128, 2, 2, 2}, 0)}},
	}
	sampled := func(latent, class string, scales ...any) (video, sound []float32) {
		g := newGraph()
		model := g.add("UNETLoader", "unet_name", "m.safetensors", "weight_dtype", "default")
		guider := g.add(class, append([]any{"model", model, "positive", g.add("Positive"), "negative", g.add("Negative")},
			scales...)...)
		g.add("Keep", "as", "out", "latent", g.add("SamplerCustomAdvanced", "guider", guider, "sigmas", g.add("Sigmas"),
			"noise", g.add("RandomNoise", "noise_seed", uint64(1)), "latent_image", g.add(latent),
			"sampler", g.add("KSamplerSelect", "sampler_name", "euler")))
		v, a := runLTX(t, g, values, root)["out"].Samples.Parts()
		return v.Data, a.Data
	}
	for _, c := range [][2]float64{{3, 7}, {1, 4}, {2, 2}} {
		video, sound := sampled("Sounding", "LTXVDualCFGGuider", "video_cfg", c[0], "audio_cfg", c[1])
		wantVideo, other := sampled("Sounding", "CFGGuider", "cfg", c[0])
		_, wantSound := sampled("Sounding", "CFGGuider", "cfg", c[1])
		if !slices.Equal(video, wantVideo) || !slices.Equal(sound, wantSound) ||
			(c[0] != c[1]) == slices.Equal(sound, other) {
			t.Errorf("scales %v: not the video of the first and the sound of the second", c)
		}
		silent, _ := sampled("Silent", "LTXVDualCFGGuider", "video_cfg", c[0], "audio_cfg", c[1])
		if want, _ := sampled("Silent", "CFGGuider", "cfg", c[0]); !slices.Equal(silent, want) {
			t.Errorf("scales %v: without sound not that of the first", c)
		}
	}
}
