package classes

import (
	"strings"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// samplerClasses returns the classes that output a sampler with options.
func samplerClasses() []graph.Class {
	plain := func(name string, preset, hi float64) graph.Input {
		return graph.Float(name, "", preset, 0, hi, 0.01).With("round", false)
	}
	float := func(name string, preset, hi float64) graph.Input { return plain(name, preset, hi).AsAdvanced() }
	order := func(name string, preset, lo, hi int64) graph.Input {
		return graph.Int(name, "", preset, lo, hi, 0).AsAdvanced()
	}
	percent := func(name string, preset float64) graph.Input {
		return graph.Float(name, "of the model that samples", preset, 0, 1, 0.001).AsAdvanced()
	}
	flag := func(name string) graph.Input { return graph.Link(name, "BOOLEAN", "").AsAdvanced() }
	kind := func(choices ...string) graph.Input { return graph.Combo("solver_type", "", choices...) }
	eta, noise := float("eta", 1, 100), float("s_noise", 1, 100)
	device := graph.Combo("noise_device", "both give the numbers of the CPU generator", "gpu", "cpu").AsAdvanced()
	ratio := graph.Float("r", "size of the first half step", 0.5, 0.01, 1, 0.01).With("round", false).AsAdvanced()
	cfgpp := samplerRow("SamplerEulerAncestralCFGPP", "euler_ancestral_cfg_pp", plain("eta", 1, 1),
		plain("s_noise", 1, 10))
	cfgpp.Display = "SamplerEulerAncestralCFG++"
	sa := samplerRow("SamplerSASolver", "sa_solver", graph.Link("model", "MODEL", ""), float("eta", 1, 10),
		percent("sde_start_percent", 0.2), percent("sde_end_percent", 0.8), noise, order("predictor_order", 3, 1, 6),
		order("corrector_order", 4, 0, 6), flag("use_pece"), flag("simple_order_2"))
	sa.Aliases = "sde"
	seeds := samplerRow("SamplerSEEDS2", "seeds_2", kind("phi_1", "phi_2"), eta, noise, ratio)
	seeds.Aliases = "sde, exp heun"
	return []graph.Class{
		{
			Name: "SamplerEulerCFGpp", Display: "SamplerEulerCFG++", Module: "comfy_extras.nodes_advanced_samplers",
			Category: "experimental", Experimental: true,
			Inputs:  []graph.Input{graph.Combo("version", "", "regular", "alternative").AsAdvanced()},
			Outputs: graph.Slots("SAMPLER"), Run: func(c *graph.Call) ([]any, error) {
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
		samplerRow("SamplerDPMPP_2M_SDE", "dpmpp_2m_sde", kind("midpoint", "heun"), eta, noise, device),
		samplerRow("SamplerDPMPP_SDE", "dpmpp_sde", eta, noise, float("r", 0.5, 100), device),
		samplerRow("SamplerDPMPP_2S_Ancestral", "dpmpp_2s_ancestral", plain("eta", 1, 100), plain("s_noise", 1, 100)),
		samplerRow("SamplerDPMAdaptative", "dpm_adaptive", order("order", 3, 2, 3), float("rtol", 0.05, 100),
			float("atol", 0.0078, 100), float("h_init", 0.05, 100), float("pcoeff", 0, 100), float("icoeff", 1, 100),
			float("dcoeff", 0, 100), float("accept_safety", 0.81, 100), float("eta", 0, 100), noise),
		samplerRow("SamplerER_SDE", "er_sde", kind("ER-SDE", "Reverse-time SDE", "ODE"), order("max_stage", 3, 1, 3),
			float("eta", 1, 10), noise),
		sa,
		seeds,
	}
}

// samplerRow returns a class whose inputs are the options of one sampler, by the same names. Two inputs are not
// options: noise_device chooses between two samplers, and SamplerSASolver's model is ignored, because its percentages
// refer to the model that samples, which is the same one in any sensible graph.
func samplerRow(class, sampler string, inputs ...graph.Input) graph.Class {
	return graph.Class{
		Name: class, Module: "comfy_extras.nodes_custom_sampler", Category: "model/sampling/samplers",
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
			for _, in := range inputs {
				if in.Name == "noise_device" || in.Type == "MODEL" {
					continue
				}
				v := c.Raw(in.Name)
				switch in.Type {
				case "INT":
					v = c.Whole(in.Name)
				case "FLOAT":
					v = c.Decimal(in.Name)
				}
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

// schedulerClasses returns the classes that create lists of sigmas.
func schedulerClasses() []graph.Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "model/sampling/schedulers"
	row := func(name string, run func(*graph.Call) ([]float32, error), inputs ...graph.Input) graph.Class {
		return graph.Class{
			Name: name, Module: module, Category: category, Inputs: inputs, Outputs: graph.Slots("SIGMAS"),
			Run: func(c *graph.Call) ([]any, error) { return sigmasOf(run(c)) },
		}
	}
	model := graph.Link("model", "MODEL", "")
	steps := graph.Int("steps", "", 20, 1, 10000, 0)
	float := func(name string, preset, lo, hi, step float64) graph.Input {
		return graph.Float(name, "", preset, lo, hi, step).With("round", false).AsAdvanced()
	}
	highest, lowest := float("sigma_max", 14.614642, 0, 5000, 0.01), float("sigma_min", 0.0291675, 0, 5000, 0.01)
	return []graph.Class{
		row("KarrasScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.Karras(c.Whole("steps"), c.Decimal("sigma_min"), c.Decimal("sigma_max"), c.Decimal("rho"))
		}, steps, highest, lowest, float("rho", 7, 0, 100, 0.01)),
		row("ExponentialScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.Exponential(c.Whole("steps"), c.Decimal("sigma_min"), c.Decimal("sigma_max"))
		}, steps, highest, lowest),
		row("PolyexponentialScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.Polyexponential(c.Whole("steps"), c.Decimal("sigma_min"), c.Decimal("sigma_max"), c.Decimal("rho"))
		}, steps, highest, lowest, float("rho", 1, 0, 100, 0.01)),
		row("LaplaceScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.Laplace(c.Whole("steps"), c.Decimal("sigma_min"), c.Decimal("sigma_max"),
				c.Decimal("mu"), c.Decimal("beta"))
		}, steps, highest, lowest, float("mu", 0, -10, 10, 0.1), float("beta", 0.5, 0, 10, 0.1)),
		row("VPScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.VP(c.Whole("steps"), c.Decimal("beta_d"), c.Decimal("beta_min"), c.Decimal("eps_s"))
		}, steps, float("beta_d", 19.9, 0, 5000, 0.01), float("beta_min", 0.1, 0, 5000, 0.01),
			float("eps_s", 0.001, 0, 1, 0.0001)),
		row("BetaSamplingScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.BetaSigmas(c.Model("model").Sampling, c.Whole("steps"),
				c.Decimal("alpha"), c.Decimal("beta"))
		}, model, steps, float("alpha", 0.6, 0, 50, 0.01), float("beta", 0.6, 0, 50, 0.01)),
		{
			Name: "Flux2Scheduler", Module: "comfy_extras.nodes_flux", Category: category,
			Inputs: []graph.Input{
				graph.Int("steps", "", 20, 1, 4096, 0), pixels("width", 1024, 16, 1), pixels("height", 1024, 16, 1),
			},
			Outputs: graph.Slots("SIGMAS"), Run: func(c *graph.Call) ([]any, error) {
				return sigmasOf(sampling.Flux2(c.Whole("steps"), c.Whole("width"), c.Whole("height")))
			},
		},
		row("SDTurboScheduler", func(c *graph.Call) ([]float32, error) {
			return sampling.SDTurbo(c.Model("model").Sampling, c.Whole("steps"), c.Decimal("denoise"))
		}, model, graph.Int("steps", "", 1, 1, 10, 0),
			graph.Number("denoise", "FLOAT", "", "default", 1.0, "min", int64(0), "max", 1.0, "step", 0.01).AsLater()),
	}
}

// firstWord returns the argument name that an error of package sampling begins with.
func firstWord(s string) string {
	if i := strings.IndexAny(s, " :,"); i > 0 {
		return s[:i]
	}
	return s
}

// sigmaClasses returns the classes that modify lists of sigmas.
func sigmaClasses() []graph.Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "model/sampling/sigmas"
	in, halves := graph.Link("sigmas", "SIGMAS", ""),
		[]graph.Slot{{Name: "high_sigmas", Type: "SIGMAS"}, {Name: "low_sigmas", Type: "SIGMAS"}}
	return graph.Rows(graph.Class{Module: module, Category: category, Outputs: graph.Slots("SIGMAS")}, []graph.Class{
		{
			Name: "SplitSigmas", Inputs: []graph.Input{in, graph.Int("step", "", 0, 0, 10000, 0)},
			Outputs: halves, Run: func(c *graph.Call) ([]any, error) {
				high, low := sampling.SplitSigmas(c.Sigmas("sigmas"), c.Whole("step"))
				return []any{value.Sigmas(high), value.Sigmas(low)}, nil
			},
		},
		{
			Name: "SplitSigmasDenoise", Inputs: []graph.Input{in, graph.Float("denoise", "", 1, 0, 1, 0.01)},
			Outputs: halves, Run: func(c *graph.Call) ([]any, error) {
				high, low := sampling.SplitSigmasDenoise(c.Sigmas("sigmas"), c.Decimal("denoise"))
				return []any{value.Sigmas(high), value.Sigmas(low)}, nil
			},
		},
		{
			Name: "FlipSigmas", Inputs: []graph.Input{in}, Run: func(c *graph.Call) ([]any, error) {
				return []any{value.Sigmas(sampling.FlipSigmas(c.Sigmas("sigmas")))}, nil
			},
		},
		{
			Name:   "SetFirstSigma",
			Inputs: []graph.Input{in, graph.Float("sigma", "", 136, 0, 20000, 0.001).With("round", false)},
			Run: func(c *graph.Call) ([]any, error) {
				return sigmasOf(sampling.SetFirstSigma(c.Sigmas("sigmas"), c.Decimal("sigma")))
			},
		},
		{
			Name: "ExtendIntermediateSigmas", Aliases: "interpolate sigmas",
			Inputs: []graph.Input{
				in, graph.Int("steps", "parts of every interval", 2, 1, 100, 0),
				graph.Float("start_at_sigma", "below 0: no limit", -1, -1, 20000, 0.01).With("round", false),
				graph.Float("end_at_sigma", "", 12, 0, 20000, 0.01).With("round", false),
				graph.Combo("spacing", "", "linear", "cosine", "sine"),
			},
			Run: func(c *graph.Call) ([]any, error) {
				return sigmasOf(sampling.ExtendSigmas(c.Sigmas("sigmas"), c.Whole("steps"),
					c.Decimal("start_at_sigma"), c.Decimal("end_at_sigma"), c.Str("spacing")))
			},
		},
		{
			Name: "SamplingPercentToSigma",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Float("sampling_percent", "", 0, 0, 1, 0.0001),
				graph.Bool("return_actual_sigma",
					"at 0 and 1: the ends of the table, not the values that intervals are compared with", false),
			},
			Outputs: []graph.Slot{{Name: "sigma_value", Type: "FLOAT"}}, Run: func(c *graph.Call) ([]any, error) {
				return []any{c.Model("model").Sampling.SamplingPercentToSigma(c.Decimal("sampling_percent"),
					c.Flag("return_actual_sigma"))}, nil
			},
		},
		{
			Name: "ManualSigmas", Aliases: "custom noise schedule, define sigmas",
			Experimental: true, Description: "Takes every number of the text as a sigma.",
			Inputs: []graph.Input{graph.Number("sigmas", "STRING", "", "default", "1, 0.5", "multiline", false)},
			Run: func(c *graph.Call) ([]any, error) {
				return sigmasOf(sampling.ManualSigmas(c.Str("sigmas")))
			},
		},
	})
}

// sigmasOf returns the outputs of a node with one list of sigmas. Errors of package sampling begin with the name of the
// argument at fault.
func sigmasOf(sigmas []float32, err error) ([]any, error) {
	if err != nil {
		return nil, fault.At(fault.BadInput, firstWord(err.Error()), "%v", err)
	}
	return []any{value.Sigmas(sigmas)}, nil
}
