package classes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// unetSide is a conditioning of a recorded run.
type unetSide struct {
	Context       string
	Shape, Pooled []int
	Sizes         []int `json:"width_height_cropw_croph_targetw_targeth"`
	Score         *float64
}

// unetCase is a run of sdxl/e2e.json, sdxl/edm.json or refiner/e2e.json.
type unetCase struct {
	Model, Latent, Sampler, Scheduler, Mask, What string
	Concat                                        string `json:"concat_latent_image"`
	Base                                          string // the model of the first steps; empty: Model
	BaseSteps                                     int    `json:"base_steps"`
	Width, Height, Steps                          int
	CFG, Denoise                                  float64
	Seed                                          uint64
	Positive, Negative                            unetSide
	Patches                                       [][]any              // nodes: class, then inputs in their order
	Markers                                       map[string][]float32 // of the file; nil: of the recorded one
}

// describe describes the network of a case, with its markers as full checkpoints have them.
func (c *unetCase) describe(t *testing.T) *value.Model {
	t.Helper()
	if c.Markers == nil {
		return (&e2eCase{Model: c.Model}).model(t)
	}
	set, config, err := goldenweights.Set(c.Model)
	check(t, err)
	file := map[string]weights.Stored{}
	for _, name := range set.Names() {
		if s, _ := set.Get(name); name != "v_pred" {
			file["model.diffusion_model."+name] = s
		}
	}
	for name, v := range c.Markers {
		file[name] = weights.Floats(v, len(v))
	}
	d, err := models.OpenDiffusion(weights.FromMap(file), map[string]string{"config": string(config)})
	check(t, err)
	if len(d.Unused) > 0 {
		t.Errorf("tensors %v are not known", d.Unused)
	}
	m, err := value.NewModel(c.Model, fmt.Sprint(c.Model, c.Markers), d, 1<<20, request.LoadFunc(d.Load))
	check(t, err)
	return m
}

// planes returns a recorded latent, or zeros.
func (c *unetCase) planes(name string) request.Latent {
	l := request.NewLatent(1, 4, c.Height/8, c.Width/8)
	if of, ok := strings.CutPrefix(name, "input:"); ok {
		l.Data = golden.Input(of, l.Len())
	}
	return l
}

// mask returns the mask of the recorded runs in pixels, nil if the case has none.
func (c *unetCase) mask() *picture.Mask {
	if c.Mask == "" {
		return nil
	}
	m := &picture.Mask{B: 1, Y: c.Height, X: c.Width, Data: make([]float32, c.Height*c.Width)}
	for y := c.Height / 4; y < 3*c.Height/4; y++ {
		for x := c.Width / 3; x < c.Width; x++ {
			m.Data[y*c.Width+x] = 1
		}
	}
	return m
}

func (c *unetCase) side(s unetSide) value.Conditioning {
	name := strings.TrimPrefix(s.Context, "input:")
	cond := value.Cond{MaskStrength: 1, Score: s.Score}
	cond.Context = dit.Array{Rows: s.Shape[1], Cols: s.Shape[2], Data: golden.Input(name, s.Shape[1]*s.Shape[2])}
	if s.Pooled != nil {
		cond.Pooled = golden.Input(strings.TrimSuffix(name, "context")+"pooled", s.Pooled[1])
	}
	if n := s.Sizes; n != nil {
		cond.Sizes = &family.Sizes{Width: n[0], Height: n[1], Left: n[2], Top: n[3], TargetWidth: n[4], TargetHeight: n[5]}
	}
	if c.Concat != "" {
		cond.ConcatImage, cond.ConcatMask = c.planes(c.Concat), c.mask()
	}
	return value.Conditioning{cond}
}

// TestUNetRunsThroughNodes runs every recorded run of SDXL, its refiner and SD1.5 as a workflow.
func TestUNetRunsThroughNodes(t *testing.T) {
	for file, n := range map[string]int{"sdxl/e2e": 10, "sdxl/edm": 16, "refiner/e2e": 4} {
		cases := map[string]*unetCase{}
		if err := golden.JSON(file+".json", &cases); err != nil {
			t.Fatal(err)
		}
		if len(cases) < n {
			t.Fatalf("%s: %d runs", file, len(cases))
		}
		unetRuns(t, file, cases)
	}
}

// sampled adds the sampling of a case to a graph, by both networks if it has two, and returns the link to the latent.
func (c *unetCase) sampled(t *testing.T, g *graphMaker, model any, values map[string]given) any {
	common := []any{"steps", int64(c.Steps), "cfg", c.CFG, "sampler_name", c.Sampler, "scheduler", c.Scheduler}
	sides := []any{"model", model, "positive", g.add("Pos"), "negative", g.add("Neg")}
	if c.Base == "" {
		return g.add("KSampler", slices.Concat(sides, common, []any{
			"latent_image", g.add("TheLatent"), "seed", c.Seed, "denoise", c.Denoise,
		})...)
	}
	of := func(s unetSide) value.Conditioning {
		s.Context = strings.Replace(s.Context, c.Model, c.Base, 1)
		return c.side(s)
	}
	values["TheBase"] = given{"MODEL", (&e2eCase{Model: c.Base}).model(t)}
	values["BasePos"] = given{"CONDITIONING", of(c.Positive)}
	values["BaseNeg"] = given{"CONDITIONING", of(c.Negative)}
	half := g.add("KSamplerAdvanced", slices.Concat(common, []any{
		"model", g.add("TheBase"), "positive", g.add("BasePos"), "negative", g.add("BaseNeg"),
		"latent_image", g.add("TheLatent"), "add_noise", "enable", "noise_seed", c.Seed, "start_at_step", int64(0),
		"end_at_step", int64(c.BaseSteps), "return_with_leftover_noise", "enable",
	})...)
	return g.add("KSamplerAdvanced", slices.Concat(sides, common, []any{
		"latent_image", half, "add_noise", "disable", "noise_seed", c.Seed, "start_at_step", int64(c.BaseSteps),
		"end_at_step", int64(10000), "return_with_leftover_noise", "disable",
	})...)
}

func unetRuns(t *testing.T, file string, cases map[string]*unetCase) {
	eng := engineOf(t, fastOps)
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		if testing.Short() && !slices.Contains([]string{
			"sdxl-v/ModelSamplingDiscrete-zsnr-rescale", "sdxl-inpaint/euler-normal-5", "sd15/dpmpp_2m-karras-6-cfg7",
			"refiner/node", "refiner/base-then-refiner", "cosmos-masked", "file-playground", "file-vpred",
		}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			g, got := newGraph(), map[string]*value.Latent{}
			l := &value.Latent{Samples: c.planes(c.Latent), NoiseMask: c.mask()}
			values := map[string]given{
				"TheModel": {"MODEL", c.describe(t)}, "TheLatent": {"LATENT", l},
				"Pos": {"CONDITIONING", c.side(c.Positive)}, "Neg": {"CONDITIONING", c.side(c.Negative)},
			}
			model := g.add("TheModel")
			if strings.Contains(name, "ModelSamplingDiscrete") {
				model = g.add("ModelSamplingDiscrete", "model", model, "sampling", "v_prediction", "zsnr", true)
				model = g.add("RescaleCFG", "model", model, "multiplier", 0.7)
			}
			for _, p := range c.Patches {
				class, inputs := p[0].(string), []any{"model", model}
				for i, v := range p[1:] {
					inputs = append(inputs, All().Class(class).Inputs[1+i].Name, v)
				}
				model = g.add(class, inputs...)
			}
			g.add("Keep", "latent", c.sampled(t, g, model, values), "as", "output")
			runner, err := graph.NewRunner(graph.Config{Engine: eng, Catalogue: All(giving(values, got)...)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(runner.Close)
			if _, err := runner.Run(context.Background(), graph.Job{ID: "unet", Workflow: g.workflow(t)}, nil); err != nil {
				t.Fatal(err)
			}
			rel := relative(got["output"].Samples.Data, tensorOf(t, file+".safetensors", name))
			bound := 2e-4
			if t.Logf("relative error %.2g, bound %g", rel, bound); !(rel <= bound) {
				t.Errorf("relative error %.3g, bound %g", rel, bound)
			}
		})
	}
}
