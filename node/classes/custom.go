package classes

import (
	"math"

	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

// customClasses are the rows of the custom-sampling chain: noise, guider, sampler, sigmas, and the node that runs them.
func customClasses() []graph.Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "model/sampling"
	return []graph.Class{
		{
			Name: "SamplerCustomAdvanced", Module: module, Category: category + "/custom", NewStyle: true,
			Heavy: graph.StageDenoise,
			Inputs: []graph.Input{
				graph.Link("noise", "NOISE", ""), graph.Link("guider", "GUIDER", ""), graph.Link("sampler", "SAMPLER", ""),
				graph.Link("sigmas", "SIGMAS", ""), graph.Link("latent_image", "LATENT", ""),
			},
			Outputs: []graph.Slot{{Name: "output", Type: "LATENT"}, {Name: "denoised_output", Type: "LATENT"}},
			Run:     samplerCustomAdvanced,
		},
		{
			Name: "KSamplerSelect", Module: module, Category: category + "/samplers", NewStyle: true,
			Inputs: []graph.Input{graph.Combo("sampler_name", "", sampling.SamplerNames()...)}, Outputs: graph.Slots("SAMPLER"),
			Run: func(c *graph.Call) ([]any, error) { return []any{value.Sampler{Name: c.Str("sampler_name")}}, nil },
		},
		{
			Name: "BasicScheduler", Module: module, Category: category + "/schedulers", NewStyle: true,
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Combo("scheduler", "", sampling.ScheduleNames()...),
				graph.Int("steps", "", 20, 1, 10000, 0),
				graph.Float("denoise", "", 1, 0, 1, 0.01).AsLater(),
			},
			Outputs: graph.Slots("SIGMAS"), Run: basicScheduler,
		},
		{
			Name: "BasicGuider", Display: "Basic Guider", Module: module, Category: category + "/guiders", NewStyle: true,
			Inputs:  []graph.Input{graph.Link("model", "MODEL", ""), graph.Link("conditioning", "CONDITIONING", "")},
			Outputs: graph.Slots("GUIDER"), Run: basicGuider,
		},
		{
			Name: "CFGGuider", Display: "CFG Guider", Module: module, Category: category + "/guiders", NewStyle: true,
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Link("positive", "CONDITIONING", ""),
				graph.Link("negative", "CONDITIONING", ""),
				graph.Float("cfg", "", 8, 0, 100, 0.1).With("round", 0.01),
			},
			Outputs: graph.Slots("GUIDER"), Run: cfgGuider,
		},
		{
			Name: "RandomNoise", Module: module, Category: category + "/noise", NewStyle: true,
			Inputs: []graph.Input{graph.SeedInput("noise_seed")}, Outputs: graph.Slots("NOISE"),
			Run: func(c *graph.Call) ([]any, error) { return []any{value.Noise{Seed: c.Seed("noise_seed")}}, nil },
		},
	}
}

func basicScheduler(c *graph.Call) ([]any, error) {
	m := graph.Arg[*value.Model](c, "model")
	sigmas, err := sampling.BasicSchedulerSigmas(m.Sampling, c.Str("scheduler"), c.Whole("steps"), c.Decimal("denoise"))
	if err != nil {
		return nil, fault.At(fault.CodeBadInput, "scheduler", "%v", err)
	}
	return []any{value.Sigmas(sigmas)}, nil
}

func basicGuider(c *graph.Call) ([]any, error) {
	return []any{&value.Guider{
		Model: graph.Arg[*value.Model](c, "model"), Rule: parallel.Guider{Kind: parallel.GuideBasic, CFG: 1},
		Branches: []value.GuiderBranch{{Name: "positive", Conditioning: graph.Arg[value.Conditioning](c, "conditioning")}},
	}}, nil
}

func cfgGuider(c *graph.Call) ([]any, error) {
	cfg := c.Decimal("cfg")
	if math.IsNaN(cfg) || math.IsInf(cfg, 0) {
		return nil, fault.Bad("cfg", "%v is not a finite number", cfg)
	}
	return []any{&value.Guider{
		Model: graph.Arg[*value.Model](c, "model"), Rule: parallel.Guider{Kind: parallel.GuideCFG, CFG: float32(cfg)},
		Branches: []value.GuiderBranch{
			{Name: "positive", Conditioning: graph.Arg[value.Conditioning](c, "positive")},
			{Name: "negative", Conditioning: graph.Arg[value.Conditioning](c, "negative")},
		},
	}}, nil
}

func samplerCustomAdvanced(c *graph.Call) ([]any, error) {
	g, l := graph.Arg[*value.Guider](c, "guider"), graph.Arg[*value.Latent](c, "latent_image")
	req, err := lowerCustom(graph.Arg[value.Noise](c, "noise"), g, graph.Arg[value.Sampler](c, "sampler"),
		graph.Arg[value.Sigmas](c, "sigmas"), l, hints(c))
	if err != nil {
		return nil, err
	}
	out, denoised, err := runSampling(c, req, g.Model, l)
	return []any{out, denoised}, err
}

// lowerCustom turns the parts of the custom-sampling chain into a request.
func lowerCustom(noise value.Noise, g *value.Guider, s value.Sampler, sigmas value.Sigmas,
	l *value.Latent, hint value.HintFunc,
) (*parallel.Request, error) {
	return value.Lower(value.Lowering{
		Model: g.Model, Sampler: s, Sigmas: append([]float32(nil), sigmas...), Latent: l,
		Seed: noise.Seed, NoNoise: noise.None, Rule: g.Rule, Branches: g.Branches, Hint: hint,
	})
}
