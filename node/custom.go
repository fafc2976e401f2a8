package node

import (
	"math"

	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/value"
	"patchbay/parallel"
)

// customClasses are the rows of the custom-sampling chain: noise, guider, sampler, sigmas, and the node that runs them.
func customClasses() []Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "sampling/custom_sampling"
	return []Class{
		{
			Name: "SamplerCustomAdvanced", Module: module, Category: category, NewStyle: true, Heavy: stageDenoise,
			Inputs: []Input{
				linkIn("noise", "NOISE", ""), linkIn("guider", "GUIDER", ""), linkIn("sampler", "SAMPLER", ""), linkIn("sigmas", "SIGMAS", ""), linkIn("latent_image", "LATENT", ""),
			},
			Outputs: []Slot{{"output", "LATENT"}, {"denoised_output", "LATENT"}}, Run: samplerCustomAdvanced,
		},
		{
			Name: "KSamplerSelect", Module: module, Category: category + "/samplers", NewStyle: true,
			Inputs: []Input{combo("sampler_name", "", sampling.SamplerNames()...)}, Outputs: slots("SAMPLER"),
			Run: func(c *Call) ([]any, error) { return []any{value.Sampler{Name: c.str("sampler_name")}}, nil },
		},
		{
			Name: "BasicScheduler", Module: module, Category: category + "/schedulers", NewStyle: true,
			Inputs: []Input{
				linkIn("model", "MODEL", ""), combo("scheduler", "", sampling.ScheduleNames()...),
				number("steps", "INT", "", "default", int64(20), "min", int64(1), "max", int64(10000)),
				number("denoise", "FLOAT", "", "default", 1.0, "min", 0.0, "max", 1.0, "step", 0.01).asLater(),
			},
			Outputs: slots("SIGMAS"), Run: basicScheduler,
		},
		{
			Name: "BasicGuider", Module: module, Category: category + "/guiders", NewStyle: true,
			Inputs: []Input{linkIn("model", "MODEL", ""), linkIn("conditioning", "CONDITIONING", "")}, Outputs: slots("GUIDER"), Run: basicGuider,
		},
		{
			Name: "CFGGuider", Module: module, Category: category + "/guiders", NewStyle: true,
			Inputs: []Input{
				linkIn("model", "MODEL", ""), linkIn("positive", "CONDITIONING", ""), linkIn("negative", "CONDITIONING", ""),
				number("cfg", "FLOAT", "", "default", 8.0, "min", 0.0, "max", 100.0, "step", 0.1, "round", 0.01),
			},
			Outputs: slots("GUIDER"), Run: cfgGuider,
		},
		{
			Name: "RandomNoise", Module: module, Category: category + "/noise", NewStyle: true,
			Inputs: []Input{seedInput("noise_seed")}, Outputs: slots("NOISE"),
			Run: func(c *Call) ([]any, error) { return []any{value.Noise{Seed: c.seed("noise_seed")}}, nil },
		},
	}
}

func basicScheduler(c *Call) ([]any, error) {
	m := arg[*value.Model](c, "model")
	sigmas, err := sampling.BasicSchedulerSigmas(m.Sampling, c.str("scheduler"), c.whole("steps"), c.decimal("denoise"))
	if err != nil {
		return nil, fault.At(fault.CodeBadInput, "scheduler", "%v", err)
	}
	return []any{value.Sigmas(sigmas)}, nil
}

func basicGuider(c *Call) ([]any, error) {
	return []any{&value.Guider{
		Model: arg[*value.Model](c, "model"), Rule: parallel.Guider{Kind: parallel.GuideBasic, CFG: 1},
		Branches: []value.GuiderBranch{{Name: "positive", Conditioning: arg[value.Conditioning](c, "conditioning")}},
	}}, nil
}

func cfgGuider(c *Call) ([]any, error) {
	cfg := c.decimal("cfg")
	if math.IsNaN(cfg) || math.IsInf(cfg, 0) {
		return nil, fault.At(fault.CodeBadInput, "cfg", "cfg: %v is not a finite number", cfg)
	}
	return []any{&value.Guider{
		Model: arg[*value.Model](c, "model"), Rule: parallel.Guider{Kind: parallel.GuideCFG, CFG: float32(cfg)},
		Branches: []value.GuiderBranch{{Name: "positive", Conditioning: arg[value.Conditioning](c, "positive")}, {Name: "negative", Conditioning: arg[value.Conditioning](c, "negative")}},
	}}, nil
}

func samplerCustomAdvanced(c *Call) ([]any, error) {
	g, l := arg[*value.Guider](c, "guider"), arg[*value.Latent](c, "latent_image")
	req, err := lowerCustom(arg[value.Noise](c, "noise"), g, arg[value.Sampler](c, "sampler"), arg[value.Sigmas](c, "sigmas"), l)
	if err != nil {
		return nil, err
	}
	out, denoised, err := runSampling(c, req, g.Model, l)
	return []any{out, denoised}, err
}

// lowerCustom turns the parts of the custom-sampling chain into a request.
func lowerCustom(noise value.Noise, g *value.Guider, s value.Sampler, sigmas value.Sigmas, l *value.Latent) (*parallel.Request, error) {
	return value.Lower(value.Lowering{
		Model: g.Model, Sampler: s, Sigmas: append([]float32(nil), sigmas...), Latent: l,
		Seed: noise.Seed, NoNoise: noise.None, Rule: g.Rule, Branches: g.Branches,
	})
}
