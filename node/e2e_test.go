package node

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/models/tiny"
	"patchbay/parallel"
	"patchbay/tests/golden"
)

// The end-to-end goldens through the front door: a workflow of stock sampling nodes, run by a Runner. Only what a golden case gives as numbers (model,
// conditionings, latent) comes from nodes of this test.

type e2eEntry struct {
	Tag          string
	Context      []int
	Pooled       []int
	T5           []int
	MaskLength   int `json:"mask_length"`
	MaskLengthT5 int `json:"mask_length_t5"`
	Guidance     any
	Start        *float64 `json:"start_percent"`
	End          *float64 `json:"end_percent"`
	Strength     *float64
	Area         []any
	Bounds       bool    `json:"set_area_to_bounds"`
	MaskStrength float64 `json:"mask_strength"`
	Mask         []int
	Zeroed       bool
}

type e2eCase struct {
	Node, Model, Sampler, Scheduler, What, Latent string
	Seed                                          uint64
	Steps                                         int
	CFG, Denoise                                  float64
	AddNoise                                      string `json:"add_noise"`
	Start                                         int    `json:"start_at_step"`
	End                                           int    `json:"end_at_step"`
	Leftover                                      string `json:"return_with_leftover_noise"`
	Sigmas                                        []float32
	Shape                                         []int `json:"latent_shape"`
	Positive, Negative, Cond1                     []e2eEntry
}

func refEngine(t *testing.T) *parallel.Engine {
	t.Helper()
	e, err := parallel.NewEngine(parallel.Config{NewOps: func(int, int) (engine.Ops, error) { return ref.New(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// conditioning builds the entries of one side.
func (c *e2eCase) conditioning(list []e2eEntry) Conditioning {
	out := Conditioning{}
	for _, e := range list {
		base := "e2e/" + c.Model + "/" + e.Tag + "/"
		array := func(name string, shape []int) dit.Array {
			return dit.Array{Rows: shape[1], Cols: shape[2], Data: golden.Input(base+name, shape[1]*shape[2])}
		}
		cond := Cond{Context: array("context", e.Context), MaskStrength: float32(e.MaskStrength), MaskBounds: e.Bounds, ContextLen: e.MaskLength}
		if e.Pooled != nil {
			cond.Pooled = golden.Input(base+"pooled", e.Pooled[1])
		}
		if e.T5 != nil {
			cond.Context2, cond.Context2Len = array("t5", e.T5), e.MaskLengthT5
		}
		switch g := e.Guidance.(type) {
		case float64:
			v := float32(g)
			cond.Guidance = &v
		case nil:
			cond.NoGuidance = strings.HasPrefix(c.Model, "flux") // the key is there as null
		}
		if e.Start != nil {
			cond.Start, cond.End, cond.Ranged = *e.Start, *e.End, true
		}
		if e.Strength != nil {
			cond.Strength, cond.HasStrength = float32(*e.Strength), true
		}
		if e.Area != nil {
			at := func(i int) int { return int(e.Area[i].(float64)) }
			cond.Area = parallel.Area{H: at(0), W: at(1), Y: at(2), X: at(3)}
		}
		out = append(out, cond)
	}
	return out
}

// pixelMask is the mask of the noise_mask cases, in pixels.
func pixelMask(y, x int) *Mask {
	m := &Mask{B: 1, Y: y, X: x, Data: make([]float32, y*x)}
	for r := y / 4; r < 3*y/4; r++ {
		for c := x / 3; c < x; c++ {
			m.Data[r*x+c] = 1
		}
	}
	m.Data[0] = 0.5
	return m
}

func (c *e2eCase) latent(t *testing.T) *Latent {
	t.Helper()
	l := &Latent{Samples: parallel.NewLatent(c.Shape[0], c.Shape[1], c.Shape[2], c.Shape[3])}
	switch {
	case strings.HasPrefix(c.Latent, "input:"):
		l.Samples.Data = golden.Input(strings.TrimPrefix(c.Latent, "input:"), l.Samples.Len())
	case c.Latent == "see what":
		l.Samples.Data = goldenTensor(t, c.Model+"/advanced/stage1")
	}
	if strings.Contains(c.What, "items 3 and 1") {
		l.BatchIndex = []int{3, 1}
	}
	if strings.HasPrefix(c.What, "noise_mask") {
		l.NoiseMask = pixelMask(8*c.Shape[2], 8*c.Shape[3])
	}
	return l
}

func goldenTensor(t *testing.T, name string) []float32 {
	t.Helper()
	f, err := safetensors.Open(golden.Path("e2e.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, ok := f.Entry(name)
	if !ok {
		t.Fatalf("e2e.safetensors has no %s", name)
	}
	v, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// sources are test classes that give a case's numbers to the graph, and one that takes the result out.
func (c *e2eCase) sources(t *testing.T, m *Model, got map[string]*Latent) []Class {
	give := func(name, kind string, v any) Class {
		return Class{Name: name, Fresh: true, Outputs: slots(kind), Run: func(*Call) ([]any, error) { return []any{v}, nil }}
	}
	keep := Class{Name: "Keep", Output: true, Inputs: []Input{bareIn("latent", "LATENT"), number("as", "STRING", "")}, Run: func(call *Call) ([]any, error) {
		got[call.str("as")] = value[*Latent](call, "latent")
		return nil, nil
	}}
	return []Class{
		give("TheModel", "MODEL", m), give("Positive", "CONDITIONING", c.conditioning(c.Positive)), give("Negative", "CONDITIONING", c.conditioning(c.Negative)),
		give("TheLatent", "LATENT", c.latent(t)), give("TheSigmas", "SIGMAS", Sigmas(c.Sigmas)), keep,
	}
}

// graph is the case as a workflow of stock nodes.
func (c *e2eCase) graph() string {
	model := `"model": ["m", 0]`
	shift := `"shift": {"class_type": "ModelSamplingFlux", "inputs": {"model": ["m", 0], "max_shift": 1.15, "base_shift": 0.5, "width": 96, "height": 64}},`
	if strings.HasPrefix(c.What, "ModelSamplingFlux") {
		model = `"model": ["shift", 0]`
	} else {
		shift = ""
	}
	links := model + `, "positive": ["p", 0], "negative": ["n", 0], "latent_image": ["l", 0]`
	head := `{"m": {"class_type": "TheModel", "inputs": {}}, "p": {"class_type": "Positive", "inputs": {}}, "n": {"class_type": "Negative", "inputs": {}},
		"l": {"class_type": "TheLatent", "inputs": {}}, ` + shift + `
		"keep": {"class_type": "Keep", "inputs": {"latent": ["s", 0], "as": "output"}}, `
	settings := fmt.Sprintf(`"steps": %d, "cfg": %g, "sampler_name": %q, "scheduler": %q`, c.Steps, c.CFG, c.Sampler, c.Scheduler)
	switch c.Node {
	case "KSampler":
		return head + fmt.Sprintf(`"s": {"class_type": "KSampler", "inputs": {"seed": %d, %s, "denoise": %g, %s}}}`, c.Seed, settings, c.Denoise, links)
	case "KSamplerAdvanced":
		return head + fmt.Sprintf(`"s": {"class_type": "KSamplerAdvanced", "inputs": {"noise_seed": %d, "add_noise": %q, %s, "start_at_step": %d, "end_at_step": %d,
			"return_with_leftover_noise": %q, %s}}}`, c.Seed, c.AddNoise, settings, c.Start, c.End, c.Leftover, links)
	}
	guider, sampler := `{"class_type": "BasicGuider", "inputs": {"model": ["m", 0], "conditioning": ["p", 0]}}`, "euler"
	if c.Negative != nil {
		guider, sampler = `{"class_type": "CFGGuider", "inputs": {"model": ["m", 0], "positive": ["p", 0], "negative": ["n", 0], "cfg": 3.5}}`, "dpmpp_2m"
	}
	return head + fmt.Sprintf(`"noise": {"class_type": "RandomNoise", "inputs": {"noise_seed": %d}}, "g": %s, "k": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": %q}},
		"sigmas": {"class_type": "TheSigmas", "inputs": {}}, "keep2": {"class_type": "Keep", "inputs": {"latent": ["s", 1], "as": "denoised"}},
		"s": {"class_type": "SamplerCustomAdvanced", "inputs": {"noise": ["noise", 0], "guider": ["g", 0], "sampler": ["k", 0], "sigmas": ["sigmas", 0], "latent_image": ["l", 0]}}}`, c.Seed, guider, sampler)
}

// needsLaterNodes are cases whose graph has nodes of later orders between the numbers and the sampler.
func (c *e2eCase) needsLaterNodes() bool {
	for _, p := range []string{"ConditioningAverage", "ConditioningConcat", "CLIPTextEncodePixArtAlpha", "DifferentialDiffusion", "ModelSamplingSD3", "two masks", "set_cond_area"} {
		if strings.HasPrefix(c.What, p) {
			return true
		}
	}
	return c.Cond1 != nil || slices.ContainsFunc(append(c.Positive, c.Negative...), func(e e2eEntry) bool { return e.Zeroed })
}

func TestEndToEndThroughNodes(t *testing.T) {
	var cases map[string]*e2eCase
	if err := golden.JSON("e2e.json", &cases); err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(cases))
	for name := range cases {
		names = append(names, name)
	}
	slices.Sort(names)
	eng, ran := refEngine(t), 0
	for _, name := range names {
		c := cases[name]
		if c.needsLaterNodes() || (testing.Short() && !slices.Contains([]string{"flux-a/advanced/window", "flux-a/batch_index", "flux-a/custom-chain", "flux-b/schnell-euler-simple-4"}, name)) {
			continue
		}
		ran++
		t.Run(name, func(t *testing.T) { c.run(t, name, eng) })
	}
	if want := map[bool]int{true: 4, false: 35}[testing.Short()]; ran < want {
		t.Errorf("ran %d cases, want %d", ran, want)
	}
}

// runner prepares a runner and the graph of a case.
func (c *e2eCase) runner(t *testing.T, eng *parallel.Engine, got map[string]*Latent) (*Runner, *Workflow) {
	t.Helper()
	d, err := tiny.Describe(c.Model)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newModel(c.Model, c.Model, d, 1<<20, d.Load)
	if err != nil {
		t.Fatal(err)
	}
	runner, err := NewRunner(Config{Engine: eng, Catalogue: NewCatalogue(c.sources(t, m, got)...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runner.Close)
	w, failure := ParseWorkflowJSON([]byte(c.graph()))
	if failure != nil {
		t.Fatal(failure)
	}
	return runner, w
}

func (c *e2eCase) run(t *testing.T, name string, eng *parallel.Engine) {
	got := map[string]*Latent{}
	runner, w := c.runner(t, eng, got)
	result, err := runner.Run(context.Background(), Job{ID: name, Workflow: w}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rel := relative(got["output"].Samples.Data, goldenTensor(t, name))
	t.Logf("relative error %.2g, bound 1e-4", rel)
	if rel > 1e-4 {
		t.Errorf("relative error %.3g, bound 1e-4", rel)
	}
	if c.Node == "SamplerCustomAdvanced" {
		if rel := relative(got["denoised"].Samples.Data, goldenTensor(t, name+"#denoised_output")); rel > 1e-4 {
			t.Errorf("denoised output: relative error %.3g, bound 1e-4", rel)
		}
	}
	if len(result.Stats) != 1 || result.Timings.Denoise <= 0 {
		t.Errorf("stats of %d requests and %g s of denoising, want one request", len(result.Stats), result.Timings.Denoise)
	}
}

// relative is the largest difference divided by the largest reference value.
func relative(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst, top := 0.0, 1e-30
	for i, w := range want {
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst, top = max(worst, d), max(top, math.Abs(float64(w)))
	}
	return worst / top
}
