package classes

import (
	"context"
	"math"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/tiny"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// These tests run the end-to-end goldens as users do: as a workflow of stock sampling nodes, run by a Runner. Only
// what a golden case gives as numbers (model, conditionings, latent) comes from nodes of this test.

type e2eEntry struct {
	Tag, Input   string // Input: name of the context input, if not derived from the tag
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
	Width        float32
	Height       float32
	Final        []int       `json:"final_context"`
	References   []e2eTensor `json:"reference_latents"`
	Method       string      `json:"reference_latents_method"`
	ConcatImage  *e2eTensor  `json:"concat_latent_image"`
	ConcatMask   *e2eTensor  `json:"concat_mask"`
}

type e2eTensor struct {
	Input string
	Shape []int // [1, C, Y, X] or [1, C, 1, Y, X]
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
	Positive, Negative, Cond1, Cond2              []e2eEntry
	SigmasFrom                                    string   `json:"sigmas_from"` // Flux2Scheduler with its inputs
	Patch                                         []any    `json:"model_patch"` // class and shift
	Norm                                          *float64 `json:"cfg_norm"`
	EasyCache                                     []any    // threshold, start and end
}

func refEngine(t *testing.T) *parallel.Pool {
	t.Helper()
	return engineOf(t, func(int, int) (engine.Ops, error) { return ref.New(), nil })
}

func engineOf(t *testing.T, ops func(rank, ranks int) (engine.Ops, error)) *parallel.Pool {
	t.Helper()
	e, err := parallel.NewPool(parallel.Config{NewOps: ops})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func goldenTensor(t *testing.T, name string) []float32 {
	t.Helper()
	file := goldenweights.Folder(name) + "e2e.safetensors"
	return tensorOf(t, file, name)
}

func samplerTensor(t *testing.T, name string) []float32 {
	t.Helper()
	return tensorOf(t, "samplers.safetensors", name)
}

// tensorOf reads a tensor of a golden file.
func tensorOf(t *testing.T, file, name string) []float32 {
	t.Helper()
	f, err := golden.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, ok := f.Entry(name)
	if !ok {
		t.Fatalf("%s has no %s", file, name)
	}
	v, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestEndToEndThroughNodes runs all end-to-end goldens through the nodes, with fast operations. The goldens of the
// model families run on the reference operations, which take ten times as long.
func TestEndToEndThroughNodes(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	cases := map[string]*e2eCase{}
	for _, file := range []string{"e2e.json", "modern/e2e.json"} {
		if err := golden.JSON(file, &cases); err != nil {
			t.Fatal(err)
		}
	}
	names := make([]string, 0, len(cases))
	for name, c := range cases {
		if len(c.Shape) == 5 && c.Shape[2] == 1 { // one frame
			c.Shape = slices.Delete(c.Shape, 2, 3)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	eng, ran := engineOf(t, fastOps), 0
	for _, name := range names {
		c := cases[name]
		if testing.Short() && !slices.Contains([]string{
			"flux-a/advanced/window", "flux-a/batch_index", "flux-a/custom-chain",
			"flux-b/schnell-euler-simple-4", "sd3-a/average", "sd3-a/set_mask-bounds", "zimage-a/res_multistep-turbo-4",
		}, name) {
			continue
		}
		ran++
		t.Run(name, func(t *testing.T) { t.Logf("relative error %.2g, bound 1e-4", c.run(t, name, eng)) })
	}
	if want := map[bool]int{true: 7, false: 65}[testing.Short()]; ran < want {
		t.Errorf("ran %d cases, want %d", ran, want)
	}
}

// model describes the tiny model of a case.
func (c *e2eCase) model(t *testing.T) *value.Model {
	t.Helper()
	d, err := tiny.Describe(c.Model)
	if err != nil {
		t.Fatal(err)
	}
	m, err := value.NewModel(c.Model, c.Model, d, 1<<20, request.LoadFunc(d.Load))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// runner returns a runner and the workflow of a case.
func (c *e2eCase) runner(t *testing.T, eng *parallel.Pool,
	got map[string]*value.Latent,
) (*graph.Runner, *graph.Workflow) {
	t.Helper()
	g, values := c.build(t, c.model(t))
	runner, err := graph.NewRunner(graph.Config{Engine: eng, Catalogue: All(giving(values, got)...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runner.Close)
	return runner, g.workflow(t)
}

// run samples a case and returns its relative error.
func (c *e2eCase) run(t *testing.T, name string, eng *parallel.Pool) float64 {
	t.Helper()
	got := map[string]*value.Latent{}
	runner, w := c.runner(t, eng, got)
	result, err := runner.Run(context.Background(), graph.Job{ID: name, Workflow: w}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rel := relative(got["output"].Samples.Data, goldenTensor(t, name))
	if rel > 1e-4 {
		t.Errorf("%s: relative error %.3g, bound 1e-4", name, rel)
	}
	if len(c.Shape) == 5 {
		l := got["layers"].Samples
		if shape := []int{c.Shape[0] * (c.Shape[2] - 1), 16, 1, c.Shape[3], c.Shape[4]}; !slices.Equal(l.Shape(), shape) {
			t.Errorf("%s: layers %v, want %v", name, l.Shape(), shape)
		}
		if rel := relative(l.Data, goldenTensor(t, name+"#layers")); rel > 1e-4 {
			t.Errorf("%s: layers: relative error %.3g, bound 1e-4", name, rel)
		}
	}
	if c.Node == "SamplerCustomAdvanced" {
		if rel := relative(got["denoised"].Samples.Data, goldenTensor(t, name+"#denoised_output")); rel > 1e-4 {
			t.Errorf("denoised output: relative error %.3g, bound 1e-4", rel)
		}
	}
	if len(result.Stats) != 1 || result.Timings.Denoise <= 0 {
		t.Errorf("stats of %d requests and %g s of denoising, want one request", len(result.Stats), result.Timings.Denoise)
	}
	return rel
}

// relative returns the largest difference relative to the largest reference value.
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
