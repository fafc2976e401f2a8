package node

import "patchbay/models/sampling"

// sigmaClasses are the rows that change lists of sigmas.
func sigmaClasses() []Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "sampling/custom_sampling/sigmas"
	in, halves := linkIn("sigmas", "SIGMAS", ""), []Slot{{"high_sigmas", "SIGMAS"}, {"low_sigmas", "SIGMAS"}}
	return []Class{
		{
			Name: "SplitSigmas", Module: module, Category: category, NewStyle: true,
			Inputs:  []Input{in, number("step", "INT", "", "default", int64(0), "min", int64(0), "max", int64(10000))},
			Outputs: halves, Run: func(c *Call) ([]any, error) {
				high, low := sampling.SplitSigmas(value[Sigmas](c, "sigmas"), c.whole("step"))
				return []any{Sigmas(high), Sigmas(low)}, nil
			},
		},
		{
			Name: "SplitSigmasDenoise", Module: module, Category: category, NewStyle: true,
			Inputs:  []Input{in, number("denoise", "FLOAT", "", "default", 1.0, "min", 0.0, "max", 1.0, "step", 0.01)},
			Outputs: halves, Run: func(c *Call) ([]any, error) {
				high, low := sampling.SplitSigmasDenoise(value[Sigmas](c, "sigmas"), c.decimal("denoise"))
				return []any{Sigmas(high), Sigmas(low)}, nil
			},
		},
		{
			Name: "FlipSigmas", Module: module, Category: category, NewStyle: true,
			Inputs: []Input{in}, Outputs: slots("SIGMAS"), Run: func(c *Call) ([]any, error) {
				return []any{Sigmas(sampling.FlipSigmas(value[Sigmas](c, "sigmas")))}, nil
			},
		},
		{
			Name: "SetFirstSigma", Module: module, Category: category, NewStyle: true,
			Inputs:  []Input{in, number("sigma", "FLOAT", "", "default", 136.0, "min", 0.0, "max", 20000.0, "step", 0.001, "round", false)},
			Outputs: slots("SIGMAS"), Run: func(c *Call) ([]any, error) {
				return sigmasOf(sampling.SetFirstSigma(value[Sigmas](c, "sigmas"), c.decimal("sigma")))
			},
		},
		{
			Name: "ManualSigmas", Module: module, Category: "_for_testing/custom_sampling", NewStyle: true, Experimental: true,
			Description: "Takes every number of the text as a sigma.",
			Inputs:      []Input{number("sigmas", "STRING", "", "default", "1, 0.5", "multiline", false)},
			Outputs:     slots("SIGMAS"), Run: func(c *Call) ([]any, error) { return sigmasOf(sampling.ManualSigmas(c.str("sigmas"))) },
		},
	}
}

// sigmasOf makes the outputs of a node that gives one list. Errors of package sampling begin with the name of the argument at fault.
func sigmasOf(sigmas []float32, err error) ([]any, error) {
	if err != nil {
		return nil, fieldf(CodeBadInput, firstWord(err.Error()), "%v", err)
	}
	return []any{Sigmas(sigmas)}, nil
}
