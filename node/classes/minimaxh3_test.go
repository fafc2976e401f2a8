package classes

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// h3Run is one case of tests/golden/h3/e2e.json.
type h3Run struct {
	Model                 string
	Nodes                 string
	Width, Height, Length int64
	Shifts                []float64 `json:"shift_node"`
	Sigmas                []float32
	Seed                  uint64
	CFG                   float64
	Positive              h3Entry
	Negative              *h3Entry
}

type h3Entry struct {
	Context   string
	Shape     []int
	Tags      []int                `json:"minimax_token_tags"`
	Keyframes [][3]json.RawMessage `json:"minimax_keyframes"`
	Refs      [][3]json.RawMessage `json:"minimax_refs"`
}

// latent returns an input [1, C, T, Y, X] or [1, C, Y, X].
func h3Input(t *testing.T, name, shape json.RawMessage) request.Latent {
	t.Helper()
	var of string
	var sides []int
	check(t, json.Unmarshal(name, &of))
	check(t, json.Unmarshal(shape, &sides))
	n := 1
	for _, s := range sides {
		n *= s
	}
	l, ok := request.LatentOf(sides, golden.Input(strings.TrimPrefix(of, "input:"), n))
	if !ok {
		t.Fatalf("%s is %v", of, sides)
	}
	return l
}

func (e *h3Entry) conditioning(t *testing.T) value.Conditioning {
	t.Helper()
	rows, cols := e.Shape[1], e.Shape[2]
	out := value.Cond{MaskStrength: 1, Entry: dit.Entry{Context: dit.Array{
		Rows: rows, Cols: cols, Data: golden.Input(strings.TrimPrefix(e.Context, "input:"), rows*cols),
	}}}
	for i, tag := range e.Tags {
		if tag == 0 {
			out.Pictures = append(out.Pictures, dit.Range{Start: i, End: i + 1})
		}
	}
	for _, k := range e.Keyframes {
		var frame int
		check(t, json.Unmarshal(k[0], &frame))
		out.Guides = append(out.Guides, value.Guide{
			Latent: h3Input(t, k[1], k[2]), Condition: dit.Condition{Frame: frame + 1},
		})
	}
	for _, r := range e.Refs {
		out.Guides = append(out.Guides, value.Guide{
			Latent: h3Input(t, r[1], r[2]), Condition: dit.Condition{Sound: string(r[0]) == `"audio"`},
		})
	}
	return value.Conditioning{out}
}

// TestH3Runs compares whole runs with ComfyUI's: text alone, first and last picture, a picture and a sound as
// references, other shifts, and two prompts of different lengths. Plans that split a run give the same.
func TestH3Runs(t *testing.T) {
	var runs map[string]h3Run
	check(t, golden.JSON("h3/e2e.json", &runs))
	root := t.TempDir()
	for _, m := range []string{"h3-a", "h3-b"} {
		writeGoldenModel(t, m, "", filepath.Join(root, "diffusion_models", m+".safetensors"))
	}
	engine := engineOf(t, fastOps)
	for name, run := range runs {
		t.Run(name, func(t *testing.T) {
			for _, plan := range []string{"", "ulysses=2", "tensor=2,ring=2"} {
				if plan != "" && testing.Short() && name != "h3/first-last-frame" {
					continue // one run shows how plans treat both schedules; TestExactPlansEqualOneRank has all plans
				}
				values := map[string]given{"Positive": {"CONDITIONING", run.Positive.conditioning(t)}}
				g := newGraph()
				model := g.add("UNETLoader", "unet_name", run.Model+".safetensors", "weight_dtype", "default")
				if run.Shifts != nil {
					model = g.add("MiniMaxH3SigmaShift", "model", model, "shift_video", run.Shifts[0], "shift_audio", run.Shifts[1])
				}
				var guider []any
				if run.Negative == nil {
					guider = g.add("BasicGuider", "model", model, "conditioning", g.add("Positive"))
				} else {
					values["Negative"] = given{"CONDITIONING", run.Negative.conditioning(t)}
					guider = g.add("CFGGuider", "model", model, "positive", g.add("Positive"), "negative", g.add("Negative"), "cfg",
						run.CFG)
				}
				sampler := "euler"
				if strings.Contains(run.Nodes, "res_multistep") {
					sampler = "res_multistep"
				}
				out := g.add("SamplerCustomAdvanced", "noise", g.add("RandomNoise", "noise_seed", run.Seed), "guider", guider,
					"sampler", g.add("KSamplerSelect", "sampler_name", sampler),
					"sigmas", g.add("BasicScheduler", "model", model, "scheduler", "simple", "steps", int64(len(run.Sigmas)-1),
						"denoise", 1.0),
					"latent_image", g.add("EmptyMiniMaxH3LatentAV", "width", run.Width, "height", run.Height, "length", run.Length))
				got := map[string]*value.Latent{}
				g.add("Keep", "latent", out, "as", name)
				g.add("Keep", "latent", second(out), "as", name+"#denoised")
				runner, err := graph.NewRunner(graph.Config{
					Engine: engine, Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(values, got)...),
				})
				check(t, err)
				defer runner.Close()
				job := graph.Job{ID: "h", Workflow: g.workflow(t), Plan: plan}
				if _, err := runner.Run(context.Background(), job, nil); err != nil {
					t.Fatalf("plan %q: %v", plan, err)
				}
				bound := 2e-4
				if sampler == "euler" {
					bound = 1e-4
				}
				for as, l := range got {
					worst, err := goldenrun.Compare(l.Samples.Data, tensorOf(t, "h3/e2e.safetensors", as), bound)
					if err != nil {
						t.Errorf("plan %q, %s: %v", plan, as, err)
					}
					t.Logf("plan %q, %s: %.2g", plan, as, worst)
				}
			}
		})
	}
}

// TestH3Lengths compares the sizes of latents with the recorded ones for every length.
func TestH3Lengths(t *testing.T) {
	var recorded struct {
		Shapes map[string][3]int `json:"temporal_shape"`
	}
	check(t, golden.JSON("h3/detection.json", &recorded))
	for length, want := range recorded.Shapes {
		n, err := strconv.Atoi(length)
		check(t, err)
		pictures := h3Pictures(n)
		video := videoOf("minimaxh3")
		_, columns := video.Sound(pictures)
		if got := [3]int{pictures, video.Latent(pictures), columns}; got != want || !video.Makes(pictures) {
			t.Errorf("%d pictures: %v, want %v", n, got, want)
		}
	}
}

// TestH3RefusesInWords checks the errors of its nodes and of samplers: latents of another kind, guides that do not fit,
// and sound for models that take none.
func TestH3RefusesInWords(t *testing.T) {
	root := t.TempDir()
	writeGoldenModel(t, "h3-b", "", filepath.Join(root, "diffusion_models", "h3-b.safetensors"))
	run, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	defer run.Close()
	sound := request.Latent{B: 1, C: 24, T: 2, Y: 8, X: 4, Sound: request.Sound{C: 32, Y: 2, X: 8}}
	sound.Data = make([]float32, sound.Len())
	two := sound
	two.B, two.Data = 2, make([]float32, 2*sound.Len())
	alone := request.Latent{B: 1, C: 24, T: 2, Y: 8, X: 4, Data: make([]float32, 24*32)}
	hold := func(l request.Latent) any { return run.Hold(&value.Latent{Samples: l}, 0) }
	cond := func(cols int, guides ...value.Guide) any {
		text := dit.Array{Rows: 2, Cols: cols, Data: make([]float32, 2*cols)}
		return run.Hold(value.Conditioning{{Entry: dit.Entry{Context: text}, Guides: guides, MaskStrength: 1}}, 0)
	}
	of := func(b, c, t, y, x int, as dit.Condition) value.Guide {
		return value.Guide{
			Latent:    request.Latent{B: b, C: c, T: t, Y: max(1, t) * y, X: x, Data: make([]float32, b*c*max(1, t)*y*x)},
			Condition: as,
		}
	}
	other := run.Hold(analyticModel(t), 0)
	loaded, err := run.Exec(t.Context(), graph.ExecRequest{
		Class: "UNETLoader", Inputs: map[string]any{"unet_name": "h3-b.safetensors", "weight_dtype": "default"},
	}, nil)
	check(t, err)
	model := loaded.Outputs[0]
	pixels := run.Hold(&value.VAE{Name: value.PixelSpace, Key: value.PixelSpace, Channels: 3}, 0)
	type in = map[string]any
	sampled := func(model, latent, positive any) in {
		return in{
			"model": model, "seed": int64(1), "steps": int64(1), "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple",
			"positive": positive, "negative": positive, "latent_image": latent, "denoise": 1.0,
		}
	}
	guide := func(more ...any) in {
		out := in{"positive": cond(56), "latent": hold(sound), "frame_idx": int64(0)}
		for i := 0; i < len(more); i += 2 {
			out[more[i].(string)] = more[i+1]
		}
		return out
	}
	text := cond(56)
	for _, c := range []struct {
		class             string
		in                in
		field, code, want string
	}{
		{"KSampler", sampled(other, hold(sound), cond(1)), "latent_image", fault.WrongFamily, "sound, which"},
		{"KSampler", sampled(model, hold(alone), text), "latent_image", fault.WrongFamily, "has no sound"},
		{"KSampler", sampled(model, hold(two), text), "latent_image", fault.BadInput, "2 videos"},
		{
			"KSampler", sampled(model, run.Hold(&value.Latent{
				Samples: sound, NoiseMask: &picture.Mask{B: 1, Y: 2, X: 2, Data: make([]float32, 4)},
			}, 0), text), "latent_image", fault.BadInput, "a noise mask",
		},
		{
			"KSampler", sampled(model, hold(sound), cond(56, of(1, 24, 1, 2, 2, dit.Condition{Frame: 1}))), "positive",
			fault.BadInput, "the frames of the video are 4 x 4",
		},
		{
			"KSampler", sampled(model, hold(sound), cond(56, of(1, 24, 0, 2, 5, dit.Condition{Sound: true}))), "positive",
			fault.WrongFamily, "takes one of 32",
		},
		{
			"KSampler", sampled(other, run.Hold(&value.Latent{Samples: request.NewLatent(1, 4, 2, 2)}, 0),
				cond(1, of(1, 4, 1, 2, 2, dit.Condition{}))), "positive", fault.WrongFamily, "guide a video",
		},
		{"ModelSamplingSD3", in{"model": model, "shift": 3.0}, "model", fault.WrongFamily, "MiniMaxH3SigmaShift"},
		{
			"MiniMaxH3SigmaShift",
			in{"model": other, "shift_video": 12.0, "shift_audio": 3.0},
			"model", fault.WrongFamily,
			"no schedule of a sound",
		},
		{"MiniMaxH3AddGuide", guide("latent", hold(alone)), "latent", fault.WrongFamily, "with its sound"},
		{"MiniMaxH3AddGuide", guide(), "image", fault.BadInput, "neither"},
		{"MiniMaxH3AddGuide", guide("image", zeros(1, 8, 8, 3)), "vae", fault.BadInput, "video VAE"},
		{
			"MiniMaxH3AddGuide", guide("image", zeros(1, 8, 8, 3), "vae", pixels, "frame_idx", int64(-6)), "frame_idx",
			fault.BadInput, "do not fit into the 5",
		},
		{
			"MiniMaxH3AddGuide", guide("image", zeros(25, 8, 8, 3), "vae", pixels), "frame_idx", fault.BadInput,
			"22 pictures at 0",
		},
		{"MiniMaxH3AddGuide", guide("image", zeros(1, 8, 8, 3), "vae", pixels), "vae", fault.WrongFamily, "takes 24"},
		{"VAEEncode", in{"pixels": zeros(1, 8, 8, 3), "vae": pixels}, "", "", ""},
		{"LatentUpscaleBy", in{
			"samples": hold(sound), "upscale_method": "area", "scale_by": 2.0,
		}, "samples", fault.BadInput, "has sound"},
	} {
		_, err := run.Exec(t.Context(), graph.ExecRequest{Class: c.class, Inputs: c.in}, nil)
		if c.want == "" {
			check(t, err)
			continue
		}
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != c.field || f.Code != c.code || !strings.Contains(f.Text+" "+f.Details, c.want) {
			t.Errorf("%s: got %#v, want code %s, field %s and %q", c.class, err, c.code, c.field, c.want)
		}
	}
}

// TestH3GuideOrder checks that guides of the video come before references, in the order of the nodes.
func TestH3GuideOrder(t *testing.T) {
	of := func(frame, x int) value.Guide {
		return value.Guide{Latent: request.Latent{X: x}, Condition: dit.Condition{Frame: frame}}
	}
	list := value.Conditioning{{Guides: []value.Guide{of(1, 1), of(0, 2)}}, {Guides: []value.Guide{of(0, 3)}}}
	for i, e := range h3Guided(list, of(6, 4)) {
		var got []int
		for _, g := range e.Guides {
			got = append(got, g.Latent.X)
		}
		if want := [][]int{{1, 4, 2}, {1, 4, 3}}[i]; !slices.Equal(got, want) {
			t.Errorf("entry %d has guides %v, want %v", i, got, want)
		}
	}
}
