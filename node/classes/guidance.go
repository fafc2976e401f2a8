package classes

import (
	"math"

	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

// guidanceClasses are the rows of guided sampling beyond the basic chain: two positives, no noise, and the chain in one
// node.
func guidanceClasses() []graph.Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "model/sampling"
	cfg := func(name string) graph.Input {
		return graph.Float(name, "", 8, 0, 100, 0.1).With("round", 0.01)
	}
	conditioning := func(name string) graph.Input { return graph.Link(name, "CONDITIONING", "") }
	return []graph.Class{
		{
			Name: "SamplerCustom", Module: module, Category: category + "/custom", NewStyle: true, Heavy: graph.StageDenoise,
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Bool("add_noise", "", true).AsAdvanced(),
				graph.SeedInput("noise_seed"), cfg("cfg"),
				conditioning("positive"), conditioning("negative"), graph.Link("sampler", "SAMPLER", ""),
				graph.Link("sigmas", "SIGMAS", ""), graph.Link("latent_image", "LATENT", ""),
			},
			Outputs: []graph.Slot{{Name: "output", Type: "LATENT"}, {Name: "denoised_output", Type: "LATENT"}},
			Run:     samplerCustom,
		},
		{
			Name: "DualCFGGuider", Display: "Dual CFG Guider", Module: module, Category: category + "/guiders",
			Aliases: "dual prompt guidance", NewStyle: true,
			Description: "Guides with two conditionings: one scale between them, one between the second and the negative.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), conditioning("cond1"), conditioning("cond2"), conditioning("negative"),
				cfg("cfg_conds"), cfg("cfg_cond2_negative"), graph.Combo("style", "", "regular", "nested").AsLater(),
			},
			Outputs: graph.Slots("GUIDER"), Run: dualGuider,
		},
		{
			Name: "AddNoise", Module: module, Category: "model/sampling/noise", NewStyle: true, Experimental: true,
			Description: "Puts noise on a latent as a run from the first sigma down to the last would have taken it away.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Link("noise", "NOISE", ""),
				graph.Link("sigmas", "SIGMAS", ""), graph.Link("latent_image", "LATENT", ""),
			},
			Outputs: graph.Slots("LATENT"), Run: addNoise,
		},
		{
			Name: "DisableNoise", Module: module, Category: category + "/noise",
			Aliases: "zero noise", NewStyle: true,
			Description: "Starts from the latent as it is.",
			Outputs:     graph.Slots("NOISE"), Run: func(*graph.Call) ([]any, error) {
				return []any{value.Noise{None: true}},
					nil
			},
		},
	}
}

// samplerCustom is SamplerCustomAdvanced with a CFGGuider and noise of its own. The seed also decides what samplers
// draw on the way, with or without noise at the start.
func samplerCustom(c *graph.Call) ([]any, error) {
	g := &value.Guider{
		Model: graph.Arg[*value.Model](c, "model"),
		Rule:  parallel.Guider{Kind: parallel.GuideCFG, CFG: float32(c.Decimal("cfg"))},
		Branches: []value.GuiderBranch{
			{Name: "positive", Conditioning: graph.Arg[value.Conditioning](c, "positive")},
			{Name: "negative", Conditioning: graph.Arg[value.Conditioning](c, "negative")},
		},
	}
	l := graph.Arg[*value.Latent](c, "latent_image")
	noise := value.Noise{Seed: c.Seed("noise_seed"), None: !c.Flag("add_noise")}
	req, err := lowerCustom(noise, g, graph.Arg[value.Sampler](c, "sampler"), graph.Arg[value.Sigmas](c, "sigmas"), l,
		hints(c))
	if err != nil {
		return nil, err
	}
	out, denoised, err := runSampling(c, req, g.Model, l)
	return []any{out, denoised}, err
}

func dualGuider(c *graph.Call) ([]any, error) {
	return []any{&value.Guider{
		Model: graph.Arg[*value.Model](c, "model"),
		Rule: parallel.Guider{
			Kind: parallel.GuideDual, CFG: float32(c.Decimal("cfg_conds")), CFG2: float32(c.Decimal("cfg_cond2_negative")),
			Nested: c.Str("style") == "nested",
		},
		Branches: []value.GuiderBranch{
			{Name: "cond1", Conditioning: graph.Arg[value.Conditioning](c, "cond1")},
			{Name: "cond2", Conditioning: graph.Arg[value.Conditioning](c, "cond2")},
			{Name: "negative", Conditioning: graph.Arg[value.Conditioning](c, "negative")},
		},
	}}, nil
}

// addNoise scales the noise of the whole batch with |first - last| of the sigmas (with the only one, where there is
// one) and mixes it with the latent as the model's family does at that sigma. An empty latent is not shifted. Values
// that are not finite become 0 (ComfyUI nodes_custom_sampler.AddNoise).
func addNoise(c *graph.Call) ([]any, error) {
	m, sigmas, l := graph.Arg[*value.Model](c, "model"), graph.Arg[value.Sigmas](c, "sigmas"), c.Layers("latent_image")
	if len(sigmas) == 0 {
		return []any{l}, nil
	}
	noise := graph.Arg[value.Noise](c, "noise")
	req, err := value.Lower(value.Lowering{Model: m, Sigmas: sigmas, Latent: l, Seed: noise.Seed, NoNoise: noise.None})
	if err != nil {
		return nil, err
	}
	if noise.None {
		req.Noise = parallel.NewLatent(req.Latent.B, req.Latent.C, req.Latent.Y, req.Latent.X)
	}
	scale := sigmas[0]
	if len(sigmas) > 1 {
		scale = float32(math.Abs(float64(sigmas[0] - sigmas[len(sigmas)-1])))
	}
	out := req.Latent
	out.Data = m.Sampling.NoiseScaling(scale, req.Noise.Data, req.Latent.Data, false)
	m.Format.FromModel(out.Data, out.Y*out.X)
	for i, v := range out.Data {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			out.Data[i] = 0
		}
	}
	return []any{l.With(out)}, nil
}
