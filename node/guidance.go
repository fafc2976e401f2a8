package node

import (
	"math"

	"patchbay/node/value"
	"patchbay/parallel"
)

// guidanceClasses are the rows of guided sampling beyond the basic chain: two positives, no noise, and the chain in one node.
func guidanceClasses() []Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "sampling/custom_sampling"
	cfg := func(name string) Input {
		return number(name, "FLOAT", "", "default", 8.0, "min", 0.0, "max", 100.0, "step", 0.1, "round", 0.01)
	}
	conditioning := func(name string) Input { return linkIn(name, "CONDITIONING", "") }
	return []Class{
		{
			Name: "SamplerCustom", Module: module, Category: category, NewStyle: true, Heavy: stageDenoise,
			Inputs: []Input{
				linkIn("model", "MODEL", ""), number("add_noise", "BOOLEAN", "", "default", true), seedInput("noise_seed"), cfg("cfg"),
				conditioning("positive"), conditioning("negative"), linkIn("sampler", "SAMPLER", ""), linkIn("sigmas", "SIGMAS", ""), linkIn("latent_image", "LATENT", ""),
			},
			Outputs: []Slot{{"output", "LATENT"}, {"denoised_output", "LATENT"}}, Run: samplerCustom,
		},
		{
			Name: "DualCFGGuider", Module: module, Category: category + "/guiders", NewStyle: true,
			Description: "Guides with two conditionings: one scale between them, one between the second and the negative.",
			Inputs: []Input{
				linkIn("model", "MODEL", ""), conditioning("cond1"), conditioning("cond2"), conditioning("negative"),
				cfg("cfg_conds"), cfg("cfg_cond2_negative"), combo("style", "", "regular", "nested").asLater(),
			},
			Outputs: slots("GUIDER"), Run: dualGuider,
		},
		{
			Name: "AddNoise", Module: module, Category: "_for_testing/custom_sampling/noise", NewStyle: true, Experimental: true,
			Description: "Puts noise on a latent as a run from the first sigma down to the last would have taken it away.",
			Inputs:      []Input{linkIn("model", "MODEL", ""), linkIn("noise", "NOISE", ""), linkIn("sigmas", "SIGMAS", ""), linkIn("latent_image", "LATENT", "")},
			Outputs:     slots("LATENT"), Run: addNoise,
		},
		{
			Name: "DisableNoise", Module: module, Category: category + "/noise", NewStyle: true,
			Description: "Starts from the latent as it is.",
			Outputs:     slots("NOISE"), Run: func(*Call) ([]any, error) { return []any{value.Noise{None: true}}, nil },
		},
	}
}

// samplerCustom is SamplerCustomAdvanced with a CFGGuider and noise of its own. The seed also decides what samplers draw on the way, with or without
// noise at the start.
func samplerCustom(c *Call) ([]any, error) {
	g := &value.Guider{
		Model: arg[*value.Model](c, "model"), Rule: parallel.Guider{Kind: parallel.GuideCFG, CFG: float32(c.decimal("cfg"))},
		Branches: []value.GuiderBranch{{Name: "positive", Conditioning: arg[value.Conditioning](c, "positive")}, {Name: "negative", Conditioning: arg[value.Conditioning](c, "negative")}},
	}
	l := arg[*value.Latent](c, "latent_image")
	noise := value.Noise{Seed: c.seed("noise_seed"), None: !c.flag("add_noise")}
	req, err := lowerCustom(noise, g, arg[value.Sampler](c, "sampler"), arg[value.Sigmas](c, "sigmas"), l)
	if err != nil {
		return nil, err
	}
	out, denoised, err := runSampling(c, req, g.Model, l)
	return []any{out, denoised}, err
}

func dualGuider(c *Call) ([]any, error) {
	return []any{&value.Guider{
		Model: arg[*value.Model](c, "model"),
		Rule: parallel.Guider{
			Kind: parallel.GuideDual, CFG: float32(c.decimal("cfg_conds")), CFG2: float32(c.decimal("cfg_cond2_negative")), Nested: c.str("style") == "nested",
		},
		Branches: []value.GuiderBranch{
			{Name: "cond1", Conditioning: arg[value.Conditioning](c, "cond1")}, {Name: "cond2", Conditioning: arg[value.Conditioning](c, "cond2")}, {Name: "negative", Conditioning: arg[value.Conditioning](c, "negative")},
		},
	}}, nil
}

// addNoise scales the noise of the whole batch with |first - last| of the sigmas (with the only one, where there is one) and mixes it with the latent as
// the model's family does at that sigma. An empty latent is not shifted. Values that are not finite become 0 (ComfyUI nodes_custom_sampler.AddNoise).
func addNoise(c *Call) ([]any, error) {
	m, sigmas, l := arg[*value.Model](c, "model"), arg[value.Sigmas](c, "sigmas"), c.latent("latent_image")
	if len(sigmas) == 0 {
		return []any{l}, nil
	}
	noise := arg[value.Noise](c, "noise")
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
	m.Format.FromModel(out.Data)
	for i, v := range out.Data {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			out.Data[i] = 0
		}
	}
	return []any{l.With(out)}, nil
}
