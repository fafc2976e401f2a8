package classes

import (
	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// samplerClasses are the rows that give a sampler with options of its own.
func samplerClasses() []graph.Class {
	eta, noise := samplerFloat("eta", 1, 100).AsAdvanced(), samplerFloat("s_noise", 1, 100).AsAdvanced()
	device := graph.Combo("noise_device", "both give the numbers of the CPU generator", "gpu", "cpu").AsAdvanced()
	order := func(name string, preset, lo, hi int64) graph.Input {
		return graph.Int(name, "", preset, lo, hi, 0).AsAdvanced()
	}
	percent := func(name string, preset float64) graph.Input {
		return graph.Float(name, "of the model that samples", preset, 0, 1, 0.001).AsAdvanced()
	}
	ratio := graph.Float("r", "size of the first half step", 0.5, 0.01, 1, 0.01).With("round", false).AsAdvanced()
	cfgpp := samplerRow("SamplerEulerAncestralCFGPP", "euler_ancestral_cfg_pp", samplerFloat("eta", 1, 1),
		samplerFloat("s_noise", 1, 10))
	cfgpp.Display = "SamplerEulerAncestralCFG++"
	sa := samplerRow("SamplerSASolver", "sa_solver", graph.Link("model", "MODEL", ""), samplerFloat("eta", 1,
		10).AsAdvanced(),
		percent("sde_start_percent", 0.2), percent("sde_end_percent", 0.8), noise,
		order("predictor_order", 3, 1, 6), order("corrector_order", 4, 0, 6), graph.Link("use_pece", "BOOLEAN",
			"").AsAdvanced(),
		graph.Link("simple_order_2", "BOOLEAN", "").AsAdvanced())
	sa.Aliases = "sde"
	seeds := samplerRow("SamplerSEEDS2", "seeds_2", graph.Combo("solver_type", "", "phi_1", "phi_2"), eta, noise, ratio)
	seeds.Aliases = "sde, exp heun"
	return []graph.Class{
		{
			Name: "SamplerEulerCFGpp", Display: "SamplerEulerCFG++", Module: "comfy_extras.nodes_advanced_samplers",
			Category: "experimental", NewStyle: true, Experimental: true,
			Inputs:  []graph.Input{graph.Combo("version", "", "regular", "alternative").AsAdvanced()},
			Outputs: graph.Slots("SAMPLER"),
			Run: func(c *graph.Call) ([]any, error) {
				if c.Str("version") == "alternative" {
					return []any{value.Sampler{Name: sampling.AlternativeEulerCFGPP().Name}}, nil
				}
				return []any{value.Sampler{Name: "euler_cfg_pp"}}, nil
			},
		},
		samplerRow("SamplerEulerAncestral", "euler_ancestral", eta, noise),
		cfgpp,
		samplerRow("SamplerLMS", "lms", order("order", 4, 1, 100)),
		samplerRow("SamplerDPMPP_3M_SDE", "dpmpp_3m_sde", eta, noise, device),
		samplerRow("SamplerDPMPP_2M_SDE", "dpmpp_2m_sde", graph.Combo("solver_type", "", "midpoint", "heun"),
			eta, noise, device),
		samplerRow("SamplerDPMPP_SDE", "dpmpp_sde", eta, noise, samplerFloat("r", 0.5, 100).AsAdvanced(), device),
		samplerRow("SamplerDPMPP_2S_Ancestral", "dpmpp_2s_ancestral", samplerFloat("eta", 1, 100),
			samplerFloat("s_noise", 1, 100)),
		samplerRow("SamplerDPMAdaptative", "dpm_adaptive", order("order", 3, 2, 3), samplerFloat("rtol", 0.05,
			100).AsAdvanced(),
			samplerFloat("atol", 0.0078, 100).AsAdvanced(),
			samplerFloat("h_init", 0.05, 100).AsAdvanced(), samplerFloat("pcoeff", 0, 100).AsAdvanced(), samplerFloat("icoeff",
				1, 100).AsAdvanced(),
			samplerFloat("dcoeff", 0, 100).AsAdvanced(),
			samplerFloat("accept_safety", 0.81, 100).AsAdvanced(), samplerFloat("eta", 0, 100).AsAdvanced(), noise),
		samplerRow("SamplerER_SDE", "er_sde", graph.Combo("solver_type", "", "ER-SDE", "Reverse-time SDE", "ODE"),
			order("max_stage", 3, 1, 3), samplerFloat("eta", 1, 10).AsAdvanced(), noise),
		sa,
		seeds,
	}
}

func samplerFloat(name string, preset, hi float64) graph.Input {
	return graph.Float(name, "", preset, 0, hi, 0.01).With("round", false)
}

// samplerRow is a class whose inputs are the options of one sampler, name for name. Two inputs are none: noise_device
// chooses between two samplers, and the model of SamplerSASolver, whose percentages are read on the time line of the
// model that samples, which is the same model in any sensible graph.
func samplerRow(class, sampler string, inputs ...graph.Input) graph.Class {
	return graph.Class{
		Name: class, Module: "comfy_extras.nodes_custom_sampler",
		Category: "model/sampling/samplers", NewStyle: true,
		Inputs: inputs, Outputs: graph.Slots("SAMPLER"), Run: func(c *graph.Call) ([]any, error) {
			name := sampler
			if c.Class.Input("noise_device") != nil && c.Str("noise_device") == "gpu" {
				name += "_gpu"
			}
			entry, err := sampling.FindSampler(name)
			if err != nil {
				return nil, err
			}
			given := map[string]any{}
			for i := range inputs {
				in := &inputs[i]
				if in.Name == "noise_device" || in.Type == "MODEL" {
					continue
				}
				v := optionOf(c, in)
				if _, err := entry.NewOptions(map[string]any{in.Name: v}); err != nil {
					return nil, fault.Bad(in.Name, "%v", err)
				}
				given[in.Name] = v
			}
			options, err := entry.NewOptions(given)
			return []any{value.Sampler{Name: name, Options: options}}, err
		},
	}
}

// optionOf returns an input in the type of a sampler's option.
func optionOf(c *graph.Call, in *graph.Input) any {
	switch in.Type {
	case "INT":
		return c.Whole(in.Name)
	case "FLOAT":
		return c.Decimal(in.Name)
	}
	return c.Raw(in.Name)
}
