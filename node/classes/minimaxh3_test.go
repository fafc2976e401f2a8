package classes

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/node/files"
	"patchbay/node/graph"
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
	Positive              h3Text
	Negative              *h3Text
}

type h3Text struct {
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

func (e *h3Text) conditioning(t *testing.T) value.Conditioning {
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
		if got := [3]int{pictures, h3Frames(pictures), h3SoundColumns(pictures)}; got != want {
			t.Errorf("%d pictures: %v, want %v", n, got, want)
		}
	}
}
