package classes

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// styleRunner returns a runner with the recorded style model and image encoder in its folders. The class Watch stores
// its input in seen.
func styleRunner(t *testing.T, values map[string]given, got map[string]*value.Latent, seen *value.VisionOutput,
) *graph.Runner {
	t.Helper()
	root := t.TempDir()
	writeGolden(t, "redux-a", filepath.Join(root, "style_models", "redux.safetensors"))
	writeGolden(t, "vae-kl", filepath.Join(root, "style_models", "other.safetensors"))
	_, config, err := goldenweights.Set("siglip-a")
	check(t, err)
	writeGoldenWith(t, "siglip-a", filepath.Join(root, "clip_vision", "siglip.safetensors"),
		map[string]string{"config": string(config)})
	watch := graph.Class{
		Name: "Watch", Output: true, Inputs: []graph.Input{graph.Bare("seen", "CLIP_VISION_OUTPUT")},
		Run: func(c *graph.Call) ([]any, error) {
			*seen = graph.Arg[value.VisionOutput](c, "seen")
			return nil, nil
		},
	}
	read := graph.Class{
		Name: "Read", Output: true, Inputs: []graph.Input{graph.Bare("text", "CONDITIONING")},
		Run: func(*graph.Call) ([]any, error) { return nil, nil },
	}
	runner, err := graph.NewRunner(graph.Config{
		Engine: refEngine(t), Roots: files.Roots{Models: []string{root}},
		Catalogue: All(append(giving(values, got), watch, read)...),
	})
	check(t, err)
	t.Cleanup(runner.Close)
	return runner
}

// TestPicturesAreSeenAsByComfyUI compares CLIPVisionLoader and CLIPVisionEncode with ComfyUI for several image sizes.
func TestPicturesAreSeenAsByComfyUI(t *testing.T) {
	for name, c := range map[string]struct {
		b, y, x int
		crop    string
	}{
		"44x44": {1, 44, 44, "center"}, "70x51": {2, 70, 51, "center"}, "31x90-none": {1, 31, 90, "none"},
		"20x30": {1, 20, 30, "center"},
	} {
		im := &picture.Image{
			B: c.b, Y: c.y, X: c.x, C: 3,
			Data: golden.Fill("input:siglip-a/"+name, c.b*c.y*c.x*3, 1, 0.5),
		}
		var seen value.VisionOutput
		run, g := styleRunner(t, map[string]given{"ThePicture": {"IMAGE", im}}, nil, &seen), newGraph()
		g.add("Watch", "seen", g.add("CLIPVisionEncode", "clip_vision", g.add("CLIPVisionLoader", "clip_name",
			"siglip.safetensors"), "image", g.add("ThePicture"), "crop", c.crop))
		_, err := run.Run(t.Context(), graph.Job{ID: name, Workflow: g.workflow(t)}, nil)
		check(t, err)
		worst, err := goldenrun.Compare(seen.Data, tensorOf(t, "modern/control.safetensors", "siglip-a/"+name), 2e-5)
		if err != nil || seen.Rows != 9*c.b {
			t.Errorf("%s: %d rows: %v", name, seen.Rows, err)
		}
		t.Logf("%s: error %.2g, bound 2e-5", name, worst)
	}
}

// TestReduxMatchesComfyUI compares runs with one style model after the text with ComfyUI's.
func TestReduxMatchesComfyUI(t *testing.T) {
	var cases map[string]*struct {
		e2eCase
		Strength float64 `json:"strength"`
		Type     string  `json:"strength_type"`
		Context  []int   `json:"context"`
	}
	check(t, golden.JSON("modern/control.json", &cases))
	ran := 0
	for name, c := range cases {
		if !strings.HasPrefix(name, "redux-a/run/") {
			continue
		}
		entry := e2eEntry{Tag: "pos", Context: c.Context, Pooled: []int{1, 32}}
		values := map[string]given{
			"TheModel": {"MODEL", c.model(t)}, "TheText": {"CONDITIONING", c.raw(entry)},
			"TheLatent": {"LATENT", &value.Latent{Samples: request.NewLatent(c.Shape[0], c.Shape[1], c.Shape[2], c.Shape[3])}},
			"TheSight": {"CLIP_VISION_OUTPUT", value.VisionOutput{
				Rows: 9, Cols: 28, Data: golden.Input("redux-a/last_hidden_state", 9*28),
			}},
		}
		got := map[string]*value.Latent{}
		run, g := styleRunner(t, values, got, nil), newGraph()
		text := g.add("TheText")
		styled := g.add("StyleModelApply", "conditioning", text, "style_model",
			g.add("StyleModelLoader", "style_model_name", "redux.safetensors"), "clip_vision_output", g.add("TheSight"),
			"strength", c.Strength, "strength_type", c.Type)
		g.add("Keep", "latent", g.add("KSampler", "model", g.add("TheModel"), "positive", styled, "negative", text,
			"latent_image", g.add("TheLatent"), "steps", int64(c.Steps), "cfg", 1.0, "sampler_name", c.Sampler, "scheduler",
			c.Scheduler, "seed", c.Seed, "denoise", 1.0), "as", "output")
		_, err := run.Run(t.Context(), graph.Job{ID: name, Workflow: g.workflow(t)}, nil)
		check(t, err)
		ran++
		rel := relative(got["output"].Samples.Data, tensorOf(t, "modern/control.safetensors", name))
		if t.Logf("%s: relative error %.2g, bound 1e-4", name, rel); !(rel <= 1e-4) {
			t.Errorf("%s: relative error %.3g, bound 1e-4", name, rel)
		}
	}
	if ran != 3 {
		t.Errorf("ran %d cases, want 3", ran)
	}
}

// TestReduxInARowMatchesComfyUI compares several styles in a row, at least one of them as an attention bias, with
// ComfyUI, on one rank and on every exact plan. A style with bias log 0 must change nothing. Without rounding the bias
// to f16, the error would be 6e-6.
func TestReduxInARowMatchesComfyUI(t *testing.T) {
	record := readFluxRecord(t)
	root := record.write(t)
	writeGolden(t, "redux-a", filepath.Join(root, "style_models", "redux.safetensors"))
	eng, ran := engineOf(t, fastOps), 0
	draw := func(r *fluxRun, plan string, redux [][2]any) []float32 {
		values, got, g := r.values(), map[string]*value.Latent{}, newGraph()
		text, style := g.add("ThePositive"), g.add("StyleModelLoader", "style_model_name", "redux.safetensors")
		for i, use := range redux {
			name := fmt.Sprintf("TheSight%d", i)
			values[name] = given{"CLIP_VISION_OUTPUT", value.VisionOutput{
				Rows: 9, Cols: 28, Data: golden.Input(fmt.Sprintf("redux-a/last_hidden_state/%d", i), 9*28),
			}}
			text = g.add("StyleModelApply", "conditioning", text, "style_model", style, "clip_vision_output", g.add(name),
				"strength", use[0], "strength_type", use[1])
		}
		r.sample(g, g.add("UNETLoader", "unet_name", "flux.safetensors", "weight_dtype", "default"), text)
		runner, err := graph.NewRunner(graph.Config{
			Engine: eng, Roots: files.Roots{Models: []string{root}}, Catalogue: All(giving(values, got)...),
		})
		check(t, err)
		defer runner.Close()
		_, err = runner.Run(t.Context(), graph.Job{ID: "redux", Workflow: g.workflow(t), Plan: plan}, nil)
		check(t, err)
		return got["output"].Samples.Data
	}
	for name, r := range record.Runs {
		if r.Redux == nil {
			continue
		}
		ran++
		plans := exactPlans()
		if r.Shape[0] > 1 {
			plans = append(plans, "data=2", "cfg=2", "cfg=2,ring=2", "ulysses=2,deterministic=on")
		}
		if testing.Short() {
			plans = []string{"", plans[ran%len(plans)]}
		}
		for _, plan := range plans {
			rel := relative(draw(r, plan, r.Redux), tensorOf(t, "modern33/flux.safetensors", name))
			if t.Logf("%s %q: relative error %.2g, bound 3e-6", name, plan, rel); !(rel <= 3e-6) {
				t.Errorf("%s %q: relative error %.3g, bound 3e-6", name, plan, rel)
			}
		}
		alone := draw(r, "", nil)
		for _, plan := range []string{"", "ring=3", "pipe=2,ulysses=2,patches=2,warmup=99"} {
			if rel := relative(draw(r, plan, [][2]any{{0.0, "attn_bias"}}), alone); !(rel <= 1e-5) {
				t.Errorf("%s %q: a style of strength 0 changes the picture by %.3g, bound 1e-5", name, plan, rel)
			}
		}
	}
	if ran != 3 {
		t.Errorf("ran %d cases, want 3", ran)
	}
}

// TestStylesAreRefusedByName checks the errors for files of another type and for widths that do not fit.
func TestStylesAreRefusedByName(t *testing.T) {
	text := func(cols int) value.Conditioning {
		return value.Conditioning{{Entry: dit.Entry{Context: dit.Array{Rows: 1, Cols: cols, Data: make([]float32, cols)}}}}
	}
	for want, c := range map[string]struct {
		file       string
		seen, cols int
	}{
		"style_model: redux.safetensors reads states of 28 values":   {"redux.safetensors", 1152, 40},
		"style_model: its rows have 40 values, those of the text 64": {"redux.safetensors", 28, 64},
		"style_model_name: other.safetensors holds no style model":   {"other.safetensors", 28, 40},
	} {
		values := map[string]given{
			"TheText":  {"CONDITIONING", text(c.cols)},
			"TheSight": {"CLIP_VISION_OUTPUT", value.VisionOutput{Rows: 1, Cols: c.seen, Data: make([]float32, c.seen)}},
		}
		run, g := styleRunner(t, values, nil, nil), newGraph()
		g.add("Read", "text", g.add("StyleModelApply", "conditioning", g.add("TheText"), "style_model",
			g.add("StyleModelLoader", "style_model_name", c.file), "clip_vision_output", g.add("TheSight"), "strength", 1.0,
			"strength_type", "multiply"))
		if _, err := run.Run(t.Context(), graph.Job{ID: "style", Workflow: g.workflow(t)}, nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
