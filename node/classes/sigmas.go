package classes

import (
	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// sigmaClasses are the rows that change lists of sigmas.
func sigmaClasses() []graph.Class {
	const module, category = "comfy_extras.nodes_custom_sampler", "model/sampling/sigmas"
	in, halves := graph.Link("sigmas", "SIGMAS", ""),
		[]graph.Slot{{Name: "high_sigmas", Type: "SIGMAS"}, {Name: "low_sigmas", Type: "SIGMAS"}}
	return []graph.Class{
		{
			Name: "SplitSigmas", Module: module, Category: category, NewStyle: true,
			Inputs:  []graph.Input{in, graph.Int("step", "", 0, 0, 10000, 0)},
			Outputs: halves, Run: func(c *graph.Call) ([]any, error) {
				high, low := sampling.SplitSigmas(graph.Arg[value.Sigmas](c, "sigmas"), c.Whole("step"))
				return []any{value.Sigmas(high), value.Sigmas(low)}, nil
			},
		},
		{
			Name: "SplitSigmasDenoise", Module: module, Category: category, NewStyle: true,
			Inputs:  []graph.Input{in, graph.Float("denoise", "", 1, 0, 1, 0.01)},
			Outputs: halves, Run: func(c *graph.Call) ([]any, error) {
				high, low := sampling.SplitSigmasDenoise(graph.Arg[value.Sigmas](c, "sigmas"), c.Decimal("denoise"))
				return []any{value.Sigmas(high), value.Sigmas(low)}, nil
			},
		},
		{
			Name: "FlipSigmas", Module: module, Category: category, NewStyle: true,
			Inputs: []graph.Input{in}, Outputs: graph.Slots("SIGMAS"), Run: func(c *graph.Call) ([]any, error) {
				return []any{value.Sigmas(sampling.FlipSigmas(graph.Arg[value.Sigmas](c, "sigmas")))}, nil
			},
		},
		{
			Name: "SetFirstSigma", Module: module, Category: category, NewStyle: true,
			Inputs:  []graph.Input{in, graph.Float("sigma", "", 136, 0, 20000, 0.001).With("round", false)},
			Outputs: graph.Slots("SIGMAS"), Run: func(c *graph.Call) ([]any, error) {
				return sigmasOf(sampling.SetFirstSigma(graph.Arg[value.Sigmas](c, "sigmas"), c.Decimal("sigma")))
			},
		},
		{
			Name: "ExtendIntermediateSigmas", Module: module, Category: category,
			Aliases: "interpolate sigmas", NewStyle: true,
			Inputs: []graph.Input{
				in, graph.Int("steps", "parts of every interval", 2, 1, 100, 0),
				graph.Float("start_at_sigma", "below 0: no limit", -1, -1, 20000, 0.01).With("round", false),
				graph.Float("end_at_sigma", "", 12, 0, 20000, 0.01).With("round", false),
				graph.Combo("spacing", "", "linear", "cosine", "sine"),
			},
			Outputs: graph.Slots("SIGMAS"), Run: func(c *graph.Call) ([]any, error) {
				return sigmasOf(sampling.ExtendSigmas(graph.Arg[value.Sigmas](c, "sigmas"), c.Whole("steps"),
					c.Decimal("start_at_sigma"), c.Decimal("end_at_sigma"), c.Str("spacing")))
			},
		},
		{
			Name: "SamplingPercentToSigma", Module: module, Category: category, NewStyle: true,
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Float("sampling_percent", "", 0, 0, 1, 0.0001),
				graph.Bool("return_actual_sigma",
					"at 0 and 1: the ends of the table, not the values that intervals are compared with", false),
			},
			Outputs: []graph.Slot{{Name: "sigma_value", Type: "FLOAT"}}, Run: func(c *graph.Call) ([]any, error) {
				return []any{graph.Arg[*value.Model](c, "model").Sampling.SamplingPercentToSigma(c.Decimal("sampling_percent"),
					c.Flag("return_actual_sigma"))}, nil
			},
		},
		{
			Name: "ManualSigmas", Module: module, Category: "model/sampling/sigmas",
			Aliases: "custom noise schedule, define sigmas", NewStyle: true, Experimental: true,
			Description: "Takes every number of the text as a sigma.",
			Inputs:      []graph.Input{graph.Number("sigmas", "STRING", "", "default", "1, 0.5", "multiline", false)},
			Outputs:     graph.Slots("SIGMAS"), Run: func(c *graph.Call) ([]any, error) {
				return sigmasOf(sampling.ManualSigmas(c.Str("sigmas")))
			},
		},
	}
}

// sigmasOf makes the outputs of a node that gives one list. Errors of package sampling begin with the name of the
// argument at fault.
func sigmasOf(sigmas []float32, err error) ([]any, error) {
	if err != nil {
		return nil, fault.At(fault.CodeBadInput, firstWord(err.Error()), "%v", err)
	}
	return []any{value.Sigmas(sigmas)}, nil
}
