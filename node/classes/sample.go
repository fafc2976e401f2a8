package classes

import (
	"math"
	"slices"
	"time"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// sampleClasses returns the two KSampler classes.
func sampleClasses() []graph.Class {
	samplers, schedules := sampling.SamplerNames(), sampling.ScheduleNames()
	steps := graph.Int("steps", "number of denoising steps", 20, 1, 10000, 0)
	cfg := graph.Float("cfg", "scale of classifier-free guidance; 1 leaves the negative out", 8, 0, 100, 0.1).
		With("round", 0.01)
	step := func(name string, preset int64) graph.Input {
		return graph.Int(name, "", preset, 0, 10000, 0).AsAdvanced()
	}
	return []graph.Class{
		{
			Name: "KSampler", Category: "model/sampling",
			Aliases: "sampler, sample, generate, denoise, diffuse, txt2img, img2img", Phase: graph.PhaseDenoise,
			Description: "Denoises the latent with model and conditionings.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", "the model that denoises"), graph.SeedInput("seed"), steps, cfg,
				graph.Combo("sampler_name", "update rule", samplers...),
				graph.Combo("scheduler", "how the noise falls from step to step", schedules...),
				graph.Link("positive", "CONDITIONING", "what the picture should show"),
				graph.Link("negative", "CONDITIONING", "what it should not"),
				graph.Link("latent_image", "LATENT", "the latent to denoise"),
				graph.Float("denoise", "below 1 keeps a part of the latent", 1, 0, 1, 0.01),
			},
			Outputs: graph.Slots("LATENT"), Run: ksampler,
		},
		{
			Name: "KSamplerAdvanced", Display: "KSampler (Advanced)", Category: "model/sampling", Phase: graph.PhaseDenoise,
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.BareCombo("add_noise", "enable", "disable").AsAdvanced(),
				graph.SeedInput("noise_seed"), steps, cfg,
				graph.BareCombo("sampler_name", samplers...), graph.BareCombo("scheduler", schedules...),
				graph.Bare("positive", "CONDITIONING"), graph.Bare("negative", "CONDITIONING"),
				graph.Bare("latent_image", "LATENT"), step("start_at_step", 0), step("end_at_step", 10000),
				graph.BareCombo("return_with_leftover_noise", "disable", "enable").AsAdvanced(),
			},
			Outputs: graph.Slots("LATENT"), Run: ksamplerAdvanced,
		},
	}
}

func ksampler(c *graph.Call) ([]any, error) {
	return runKSampler(c, value.Noise{Seed: c.Seed("seed")}, c.Decimal("denoise"), -1, -1, false)
}

func ksamplerAdvanced(c *graph.Call) ([]any, error) {
	noise := value.Noise{Seed: c.Seed("noise_seed"), None: c.Str("add_noise") == "disable"}
	full := c.Str("return_with_leftover_noise") == "disable"
	return runKSampler(c, noise, 1, c.Whole("start_at_step"), c.Whole("end_at_step"), full)
}

// runKSampler runs the steps from start to last of a schedule; negative values mean no limit. full sets the last sigma
// to 0 if last cuts the schedule.
func runKSampler(c *graph.Call, noise value.Noise, denoise float64, start, last int, full bool) ([]any, error) {
	g, name := guided(c), c.Str("sampler_name")
	sigmas, err := sampling.KSamplerSigmas(g.Model.Sampling, name, c.Str("scheduler"), c.Whole("steps"), denoise)
	if err != nil {
		return nil, fault.At(fault.BadInput, "scheduler", "%v", err)
	}
	out, _, err := runSampling(c, noise, g, value.Sampler{Name: name}, sampling.CutSteps(sigmas, start, last, full))
	return []any{out}, err
}

// guided returns the guider of a node with a model, two conditionings and a CFG scale.
func guided(c *graph.Call) *value.Guider {
	return &value.Guider{
		Model: c.Model("model"), Rule: request.Guider{Kind: request.GuideCFG, CFG: float32(c.Decimal("cfg"))},
		Branches: branches(c, "positive", "negative"),
	}
}

// branches returns the conditionings of the named inputs.
func branches(c *graph.Call, names ...string) (out []value.GuiderBranch) {
	for _, name := range names {
		out = append(out, value.GuiderBranch{Name: name, Conditioning: c.Conditioning(name)})
	}
	return out
}

// runSampling samples the input latent_image and returns, in the VAE's space, the result and the last denoised
// estimate. If sigmas is empty, the latent stays as it is.
func runSampling(c *graph.Call, noise value.Noise, g *value.Guider, sampler value.Sampler, sigmas []float32) (out,
	denoised *value.Latent, err error,
) {
	m, source := g.Model, graph.Arg[*value.Latent](c, "latent_image")
	req, err := value.Lower(value.Lowering{
		Guider: *g, Noise: noise, Sampler: sampler, Sigmas: slices.Clone(sigmas), Latent: source, Hint: hints(c),
	})
	if err != nil {
		return nil, nil, err
	}
	if len(req.Sigmas) == 0 {
		l := source.Fitted(req.Latent)
		return l, l, nil
	}
	req.Plan, req.Preview, req.Profile, req.Resume = c.Job.Plan, c.Job.Preview, c.Job.Profile, c.Job.Resume
	began := time.Now()
	result, err := c.Use().Sample(req, m, func(p request.Progress) error { return reportProgress(c, m, p) })
	if err != nil {
		return nil, nil, err
	}
	result.Stats.Model = m.Name
	c.Sampled(result.Stats, time.Since(began).Seconds())
	for _, cause := range result.Stats.Lost {
		c.Warn("node %s: new processes of ranks went on where others had gone: %s", c.ID, cause)
	}
	m.FromModel(result.Latent)
	if err := value.Finite(result.Latent.Data); err != nil {
		return nil, nil, fault.New(fault.BadInput,
			"the %s sampler gave no usable latent (%v); other schedulers or fewer changes to sigmas may help", req.Sampler, err)
	}
	out = source.Fitted(result.Latent)
	if result.X0.Len() == 0 {
		return out, out, nil
	}
	m.FromModel(result.X0)
	return out, source.Fitted(result.X0), nil
}

// reportProgress emits the progress of a step, with a preview if the job asked for them.
func reportProgress(c *graph.Call, m *value.Model, p request.Progress) error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if c.Job.Preview && p.X0.Len() > 0 {
		if jpeg := m.Preview(p.X0); jpeg != nil {
			c.Emit(graph.Event{Type: "preview", Data: map[string]any{"node": c.ID, "value": p.Step, "max": p.Steps}, Blob: jpeg})
		}
	}
	data := map[string]any{"value": p.Step, "max": p.Steps, "node": c.ID}
	if sent := p.ByAxis(); len(sent) > 0 { // an extension: ComfyUI uses one device
		data["sent"] = sent
	}
	if p.Resumed { // another one
		data["resumed"] = true
	}
	c.Emit(graph.Event{Type: "progress", Data: data})
	return nil
}

// customClasses returns the custom-sampling classes: noise, guider, sampler, sigmas, and the nodes that run them.
func customClasses() []graph.Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "model/sampling"
	cfg := func(name string) graph.Input {
		return graph.Float(name, "", 8, 0, 100, 0.1).With("round", 0.01)
	}
	conditioning := func(name string) graph.Input { return graph.Link(name, "CONDITIONING", "") }
	return []graph.Class{
		{
			Name: "SamplerCustomAdvanced", Module: module, Category: category + "/custom", Phase: graph.PhaseDenoise,
			Inputs: []graph.Input{
				graph.Link("noise", "NOISE", ""), graph.Link("guider", "GUIDER", ""), graph.Link("sampler", "SAMPLER", ""),
				graph.Link("sigmas", "SIGMAS", ""), graph.Link("latent_image", "LATENT", ""),
			},
			Outputs: []graph.Slot{{Name: "output", Type: "LATENT"}, {Name: "denoised_output", Type: "LATENT"}},
			Run:     samplerCustomAdvanced,
		},
		{
			Name: "KSamplerSelect", Module: module, Category: category + "/samplers",
			Inputs: []graph.Input{graph.Combo("sampler_name", "", sampling.SamplerNames()...)}, Outputs: graph.Slots("SAMPLER"),
			Run: func(c *graph.Call) ([]any, error) { return []any{value.Sampler{Name: c.Str("sampler_name")}}, nil },
		},
		{
			Name: "BasicScheduler", Module: module, Category: category + "/schedulers",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Combo("scheduler", "", sampling.ScheduleNames()...),
				graph.Int("steps", "", 20, 1, 10000, 0), graph.Float("denoise", "", 1, 0, 1, 0.01).AsLater(),
			},
			Outputs: graph.Slots("SIGMAS"), Run: basicScheduler,
		},
		{
			Name: "BasicGuider", Display: "Basic Guider", Module: module, Category: category + "/guiders",
			Inputs:  []graph.Input{graph.Link("model", "MODEL", ""), graph.Link("conditioning", "CONDITIONING", "")},
			Outputs: graph.Slots("GUIDER"), Run: basicGuider,
		},
		{
			Name: "CFGGuider", Display: "CFG Guider", Module: module, Category: category + "/guiders",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Link("positive", "CONDITIONING", ""),
				graph.Link("negative", "CONDITIONING", ""), graph.Float("cfg", "", 8, 0, 100, 0.1).With("round", 0.01),
			},
			Outputs: graph.Slots("GUIDER"), Run: func(c *graph.Call) ([]any, error) { return []any{guided(c)}, nil },
		},
		{
			Name: "RandomNoise", Module: module, Category: category + "/noise",
			Inputs: []graph.Input{graph.SeedInput("noise_seed")}, Outputs: graph.Slots("NOISE"),
			Run: func(c *graph.Call) ([]any, error) { return []any{value.Noise{Seed: c.Seed("noise_seed")}}, nil },
		},
		{
			Name: "SamplerCustom", Module: module, Category: category + "/custom", Phase: graph.PhaseDenoise,
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Bool("add_noise", "", true).AsAdvanced(), graph.SeedInput("noise_seed"),
				cfg("cfg"), conditioning("positive"), conditioning("negative"), graph.Link("sampler", "SAMPLER", ""),
				graph.Link("sigmas", "SIGMAS", ""), graph.Link("latent_image", "LATENT", ""),
			},
			Outputs: []graph.Slot{{Name: "output", Type: "LATENT"}, {Name: "denoised_output", Type: "LATENT"}},
			Run:     samplerCustom,
		},
		{
			Name: "DualCFGGuider", Display: "Dual CFG Guider", Module: module, Category: category + "/guiders",
			Aliases:     "dual prompt guidance",
			Description: "Guides with two conditionings: one scale between them, one between the second and the negative.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), conditioning("cond1"), conditioning("cond2"), conditioning("negative"),
				cfg("cfg_conds"), cfg("cfg_cond2_negative"), graph.Combo("style", "", "regular", "nested").AsLater(),
			},
			Outputs: graph.Slots("GUIDER"), Run: dualGuider,
		},
		{
			Name: "AddNoise", Module: module, Category: "model/sampling/noise", Experimental: true,
			Description: "Puts noise on a latent as a run from the first sigma down to the last would have taken it away.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Link("noise", "NOISE", ""),
				graph.Link("sigmas", "SIGMAS", ""), graph.Link("latent_image", "LATENT", ""),
			},
			Outputs: graph.Slots("LATENT"), Run: addNoise,
		},
		{
			Name: "DisableNoise", Module: module, Category: category + "/noise", Aliases: "zero noise",
			Description: "Starts from the latent as it is.", Outputs: graph.Slots("NOISE"),
			Run: func(*graph.Call) ([]any, error) {
				return []any{value.Noise{None: true}},
					nil
			},
		},
	}
}

func basicScheduler(c *graph.Call) ([]any, error) {
	m := c.Model("model")
	sigmas, err := sampling.BasicSchedulerSigmas(m.Sampling, c.Str("scheduler"), c.Whole("steps"), c.Decimal("denoise"))
	if err != nil {
		return nil, fault.At(fault.BadInput, "scheduler", "%v", err)
	}
	return []any{value.Sigmas(sigmas)}, nil
}

func basicGuider(c *graph.Call) ([]any, error) {
	return []any{&value.Guider{
		Model: c.Model("model"), Rule: request.Guider{Kind: request.GuideBasic, CFG: 1},
		Branches: []value.GuiderBranch{{Name: "positive", Conditioning: c.Conditioning("conditioning")}},
	}}, nil
}

func samplerCustomAdvanced(c *graph.Call) ([]any, error) {
	out, denoised, err := runSampling(c, graph.Arg[value.Noise](c, "noise"), graph.Arg[*value.Guider](c, "guider"),
		graph.Arg[value.Sampler](c, "sampler"), c.Sigmas("sigmas"))
	return []any{out, denoised}, err
}

// samplerCustom is SamplerCustomAdvanced with its own CFGGuider and noise. The seed also determines the noise that
// samplers draw along the way, with or without initial noise.
func samplerCustom(c *graph.Call) ([]any, error) {
	noise := value.Noise{Seed: c.Seed("noise_seed"), None: !c.Flag("add_noise")}
	out, denoised, err := runSampling(c, noise, guided(c), graph.Arg[value.Sampler](c, "sampler"), c.Sigmas("sigmas"))
	return []any{out, denoised}, err
}

func dualGuider(c *graph.Call) ([]any, error) {
	return []any{&value.Guider{
		Model: c.Model("model"), Rule: request.Guider{
			Kind: request.GuideDual, CFG: float32(c.Decimal("cfg_conds")), CFG2: float32(c.Decimal("cfg_cond2_negative")),
			Nested: c.Str("style") == "nested",
		},
		Branches: branches(c, "cond1", "cond2", "negative"),
	}}, nil
}

// addNoise scales the noise of the whole batch by |first - last| of the sigmas (by the only one if there is just one)
// and mixes it with the latent as the model does at that sigma. An empty latent is not shifted. Non-finite values
// become 0 (ComfyUI nodes_custom_sampler.AddNoise).
func addNoise(c *graph.Call) ([]any, error) {
	m, sigmas, l := c.Model("model"), c.Sigmas("sigmas"), c.Layers("latent_image")
	if len(sigmas) == 0 {
		return []any{l}, nil
	}
	noise := graph.Arg[value.Noise](c, "noise")
	req, err := value.Lower(value.Lowering{Guider: value.Guider{Model: m}, Noise: noise, Sigmas: sigmas, Latent: l})
	if err != nil {
		return nil, err
	}
	if noise.None {
		req.Noise = request.NewLatent(req.Latent.B, req.Latent.C, req.Latent.Y, req.Latent.X)
	}
	scale := sigmas[0]
	if len(sigmas) > 1 {
		scale = float32(math.Abs(float64(sigmas[0] - sigmas[len(sigmas)-1])))
	}
	out := req.Latent
	out.Data = m.Sampling.NoiseScaling(scale, req.Noise.Data, req.Latent.Data, false)
	m.FromModel(out)
	for i, v := range out.Data {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			out.Data[i] = 0
		}
	}
	return []any{l.Fitted(out)}, nil
}
