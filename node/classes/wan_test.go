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
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/tests/golden"
)

// wanRun is one case of tests/golden/wan/e2e.json.
type wanRun struct {
	Model     string
	Models    []string
	Shift     *float64 `json:"shift_node"`
	Steps     int
	Cut       int
	CFG       json.RawMessage
	Sampler   string
	Scheduler string
	Seed      uint64
	Latent    string // class and its width, height, length and batch_size
	VAE       string
	Positive  wanText
	Negative  wanText
	Start     *wanInput `json:"start_image"`
	End       *wanInput `json:"end_image"`
	Clip      *struct { // what an encoder saw
		Input string `json:"penultimate_hidden_states"`
		Shape []int
	} `json:"clip_vision"`
}

type wanText struct {
	Context string
	Shape   []int
	Zeros   bool `json:"rows_from_20_are_zero"`
}

type wanInput struct {
	Input string
	Shape []int
}

func (e wanText) conditioning() value.Conditioning {
	rows, cols := e.Shape[1], e.Shape[2]
	data := golden.Input(strings.TrimPrefix(e.Context, "input:"), rows*cols)
	if e.Zeros {
		clear(data[20*cols:])
	}
	return value.Conditioning{{Entry: dit.Entry{Context: dit.Array{Rows: rows, Cols: cols, Data: data}}, MaskStrength: 1}}
}

func (i *wanInput) picture() *picture.Image {
	s := i.Shape
	return &picture.Image{
		B: s[0], Y: s[1], X: s[2], C: s[3], Data: golden.Fill(i.Input, s[0]*s[1]*s[2]*s[3], 1, 0.5),
	}
}

// TestWanRuns compares whole runs with ComfyUI's: text to video, two experts in one workflow, first picture, first and
// last picture, pictures with what an encoder saw in one, an image-to-video network without a picture, and the 5B
// model, whose first frame keeps timestep 0. The videos beside the latent and their masks are compared too. Plans that
// split a run give the same.
func TestWanRuns(t *testing.T) {
	var runs map[string]wanRun
	check(t, golden.JSON("wan/e2e.json", &runs))
	root := t.TempDir()
	for _, m := range []string{"wan-t2v-a", "wan-t2v-b", "wan-i2v21-a", "wan-i2v22-a", "wan-i2v22-b", "wan-ti2v-a"} {
		writeGoldenModel(t, m, "", filepath.Join(root, "diffusion_models", m+".safetensors"))
	}
	for _, m := range []string{"wan21vae-a", "wan22vae-a"} {
		writeGoldenModel(t, m, "", filepath.Join(root, "vae", m+".safetensors"))
	}
	engine, n := engineOf(t, fastOps), 0
	for name, run := range runs {
		n++
		t.Run(name, func(t *testing.T) {
			for _, plan := range []string{"", "ulysses=2,tensor=2"} {
				if plan != "" && (testing.Short() || run.Cut == 0) {
					continue // TestExactPlansEqualOneRank has all plans
				}
				run.compare(t, engine, root, name, plan)
			}
		})
	}
	if n != 9 {
		t.Errorf("%d runs were compared, want 9", n)
	}
}

func (run *wanRun) compare(t *testing.T, engine *parallel.Pool, root, name, plan string) {
	t.Helper()
	got, lists := map[string]*value.Latent{}, map[string]value.Conditioning{}
	values := map[string]given{
		"Positive": {"CONDITIONING", run.Positive.conditioning()},
		"Negative": {"CONDITIONING", run.Negative.conditioning()},
	}
	keep := graph.Class{
		Name: "KeepText", Output: true,
		Inputs: []graph.Input{graph.Bare("conditioning", "CONDITIONING"), graph.Number("as", "STRING", "")},
		Run: func(c *graph.Call) ([]any, error) {
			lists[c.Str("as")] = c.Conditioning("conditioning")
			return nil, nil
		},
	}
	g := newGraph()
	positive, negative := g.add("Positive"), g.add("Negative")
	words := strings.Fields(run.Latent)
	var inputs []any
	for i, field := range []string{"width", "height", "length", "batch_size"} {
		n := int64(1)
		if i+1 < len(words) {
			var err error
			n, err = strconv.ParseInt(words[i+1], 10, 64)
			check(t, err)
		}
		inputs = append(inputs, field, n)
	}
	if run.VAE != "" || words[0] != "EmptyHunyuanLatentVideo" {
		file := run.VAE
		if file == "" {
			file = "wan22vae-a"
		}
		inputs = append(inputs, "vae", g.add("VAELoader", "vae_name", file+".safetensors"))
	}
	for field, im := range map[string]*wanInput{"start_image": run.Start, "end_image": run.End} {
		if im != nil {
			values[field] = given{"IMAGE", im.picture()}
			inputs = append(inputs, field, g.add(field))
		}
	}
	if run.Clip != nil {
		rows, cols := run.Clip.Shape[1], run.Clip.Shape[2]
		values["Seen"] = given{"CLIP_VISION_OUTPUT", value.VisionOutput{
			Rows: rows, Cols: cols, Pictures: 1, Deep: golden.Input(strings.TrimPrefix(run.Clip.Input, "input:"), rows*cols),
		}}
		inputs = append(inputs, "clip_vision_output", g.add("Seen"))
	}
	if words[0] == "WanImageToVideo" || words[0] == "WanFirstLastFrameToVideo" {
		inputs = append(inputs, "positive", positive, "negative", negative)
	}
	latent := g.add(words[0], inputs...)
	if len(inputs) > 10 && inputs[len(inputs)-4] == "positive" {
		positive, negative, latent = latent, second(latent), []any{latent[0], int64(2)}
		g.add("KeepText", "conditioning", negative, "as", "negative")
	}
	g.add("Keep", "latent", latent, "as", "start")
	models := run.Models
	if models == nil {
		models = []string{run.Model}
	}
	var links [][]any
	for _, m := range models {
		link := g.add("UNETLoader", "unet_name", m+".safetensors", "weight_dtype", "default")
		if run.Shift != nil {
			link = g.add("ModelSamplingSD3", "model", link, "shift", *run.Shift)
		}
		links = append(links, link)
	}
	var cfg float64
	if json.Unmarshal(run.CFG, &cfg) != nil {
		var each []float64
		check(t, json.Unmarshal(run.CFG, &each))
		cfg = each[0]
	}
	common := []any{
		"steps", int64(run.Steps), "cfg", cfg, "sampler_name", run.Sampler, "scheduler", run.Scheduler, "positive", positive,
		"negative", negative,
	}
	if run.Cut == 0 {
		out := g.add("KSampler", append(common, "model", links[0], "latent_image", latent, "seed", run.Seed,
			"denoise", 1.0)...)
		g.add("Keep", "latent", out, "as", name)
	} else {
		first := g.add("KSamplerAdvanced", append(common, "model", links[0], "latent_image", latent, "noise_seed", run.Seed,
			"add_noise", "enable", "start_at_step", int64(0), "end_at_step", int64(run.Cut),
			"return_with_leftover_noise", "enable")...)
		out := g.add("KSamplerAdvanced", append(common, "model", links[1], "latent_image", first, "noise_seed", int64(0),
			"add_noise", "disable", "start_at_step", int64(run.Cut), "end_at_step", int64(10000),
			"return_with_leftover_noise", "disable")...)
		g.add("Keep", "latent", first, "as", name+"#after_high_noise")
		g.add("Keep", "latent", out, "as", name)
	}
	runner, err := graph.NewRunner(graph.Config{
		Engine: engine, Roots: files.Roots{Models: []string{root}}, Catalogue: All(append(giving(values, got), keep)...),
	})
	check(t, err)
	defer runner.Close()
	job := graph.Job{ID: "w", Workflow: g.workflow(t), Plan: plan}
	if _, err := runner.Run(context.Background(), job, nil); err != nil {
		t.Fatalf("plan %q: %v", plan, err)
	}
	const file = "wan/e2e.safetensors"
	same := func(what string, values, want []float32, bound float64) {
		t.Helper()
		if worst, err := goldenrun.Compare(values, want, bound); err != nil {
			t.Errorf("plan %q, %s: %v", plan, what, err)
		} else {
			t.Logf("plan %q, %s: %.2g", plan, what, worst)
		}
	}
	for as, l := range got {
		if as != "start" {
			same(as, l.Samples.Data, tensorOf(t, file, as), 2e-4)
		}
	}
	node := map[string]string{
		"wan22/i2v-two-experts": "wan-i2v22-a/i2v/node", "wan22/flf-two-experts": "wan-i2v22-a/flf/node",
		"wan22/ti2v-picture": "wan-ti2v-a/ti2v/node", "wan21/i2v-clip": "wan-i2v21-a/i2v21/node",
	}[name]
	switch {
	case node == "":
	case lists["negative"] != nil:
		e := lists["negative"][0]
		same("video", e.ConcatImage.Data, tensorOf(t, file, node+"#concat_latent_image"), 2e-5)
		same("mask", e.ConcatGiven.Data, tensorOf(t, file, node+"#concat_mask"), 0)
	default:
		same("latent", got["start"].Samples.Data, tensorOf(t, file, node+"#samples"), 2e-5)
		same("mask", got["start"].NoiseMask.Data, tensorOf(t, file, node+"#noise_mask"), 0)
	}
}
