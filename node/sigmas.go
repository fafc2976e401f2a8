package node

import (
	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/value"
)

// sigmaClasses are the rows that change lists of sigmas.
func sigmaClasses() []Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "sampling/custom_sampling/sigmas"
	in, halves := linkIn("sigmas", "SIGMAS", ""), []Slot{{"high_sigmas", "SIGMAS"}, {"low_sigmas", "SIGMAS"}}
	return []Class{
		{
			Name: "SplitSigmas", Module: module, Category: category, NewStyle: true,
			Inputs:  []Input{in, number("step", "INT", "", "default", int64(0), "min", int64(0), "max", int64(10000))},
			Outputs: halves, Run: func(c *Call) ([]any, error) {
				high, low := sampling.SplitSigmas(arg[value.Sigmas](c, "sigmas"), c.whole("step"))
				return []any{value.Sigmas(high), value.Sigmas(low)}, nil
			},
		},
		{
			Name: "SplitSigmasDenoise", Module: module, Category: category, NewStyle: true,
			Inputs:  []Input{in, number("denoise", "FLOAT", "", "default", 1.0, "min", 0.0, "max", 1.0, "step", 0.01)},
			Outputs: halves, Run: func(c *Call) ([]any, error) {
				high, low := sampling.SplitSigmasDenoise(arg[value.Sigmas](c, "sigmas"), c.decimal("denoise"))
				return []any{value.Sigmas(high), value.Sigmas(low)}, nil
			},
		},
		{
			Name: "FlipSigmas", Module: module, Category: category, NewStyle: true,
			Inputs: []Input{in}, Outputs: slots("SIGMAS"), Run: func(c *Call) ([]any, error) {
				return []any{value.Sigmas(sampling.FlipSigmas(arg[value.Sigmas](c, "sigmas")))}, nil
			},
		},
		{
			Name: "SetFirstSigma", Module: module, Category: category, NewStyle: true,
			Inputs:  []Input{in, number("sigma", "FLOAT", "", "default", 136.0, "min", 0.0, "max", 20000.0, "step", 0.001, "round", false)},
			Outputs: slots("SIGMAS"), Run: func(c *Call) ([]any, error) {
				return sigmasOf(sampling.SetFirstSigma(arg[value.Sigmas](c, "sigmas"), c.decimal("sigma")))
			},
		},
		{
			Name: "ExtendIntermediateSigmas", Module: module, Category: category, NewStyle: true,
			Inputs: []Input{
				in, number("steps", "INT", "parts of every interval", "default", int64(2), "min", int64(1), "max", int64(100)),
				number("start_at_sigma", "FLOAT", "below 0: no limit", "default", -1.0, "min", -1.0, "max", 20000.0, "step", 0.01, "round", false),
				number("end_at_sigma", "FLOAT", "", "default", 12.0, "min", 0.0, "max", 20000.0, "step", 0.01, "round", false),
				combo("spacing", "", "linear", "cosine", "sine"),
			},
			Outputs: slots("SIGMAS"), Run: func(c *Call) ([]any, error) {
				return sigmasOf(sampling.ExtendSigmas(arg[value.Sigmas](c, "sigmas"), c.whole("steps"), c.decimal("start_at_sigma"), c.decimal("end_at_sigma"), c.str("spacing")))
			},
		},
		{
			Name: "SamplingPercentToSigma", Module: module, Category: category, NewStyle: true,
			Inputs: []Input{
				linkIn("model", "MODEL", ""), number("sampling_percent", "FLOAT", "", "default", 0.0, "min", 0.0, "max", 1.0, "step", 0.0001),
				number("return_actual_sigma", "BOOLEAN", "at 0 and 1: the ends of the table, not the values that intervals are compared with", "default", false),
			},
			Outputs: []Slot{{"sigma_value", "FLOAT"}}, Run: func(c *Call) ([]any, error) {
				return []any{arg[*value.Model](c, "model").Sampling.SamplingPercentToSigma(c.decimal("sampling_percent"), c.flag("return_actual_sigma"))}, nil
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
		return nil, fault.At(fault.CodeBadInput, firstWord(err.Error()), "%v", err)
	}
	return []any{value.Sigmas(sigmas)}, nil
}
