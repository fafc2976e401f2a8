package classes

import (
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// conditioningClasses are the rows that change conditionings.
func conditioningClasses() []graph.Class {
	return []graph.Class{
		{
			Name: "FluxGuidance", Module: "comfy_extras.nodes_flux", Category: "model/conditioning/flux", NewStyle: true,
			Description: "Sets the guidance input of distilled models such as FLUX.1 dev.",
			Inputs: []graph.Input{
				graph.Link("conditioning", "CONDITIONING", ""),
				graph.Float("guidance", "higher follows the prompt more closely", 3.5, 0, 100, 0.1),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: fluxGuidance,
		},
		{
			Name: "ConditioningZeroOut", Display: "Conditioning Zero Out", Module: "nodes",
			Category:    "model/conditioning/transform",
			Aliases:     "null conditioning, clear conditioning",
			Description: "Replaces text states and pooled vector by zeros.",
			Inputs:      []graph.Input{graph.Bare("conditioning", "CONDITIONING")},
			Outputs:     graph.Slots("CONDITIONING"), Run: zeroOut,
		},
		{
			Name: "ConditioningSetTimestepRange", Module: "nodes", Category: "model/conditioning/transform",
			Description: "Limits a conditioning to a part of the run; 0 is its start.",
			Inputs: []graph.Input{
				graph.Bare("conditioning", "CONDITIONING"),
				graph.Float("start", "", 0, 0, 1, 0.001),
				graph.Float("end", "", 1, 0, 1, 0.001),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: setTimestepRange,
		},
		{
			Name: "ConditioningCombine", Display: "Conditioning (Combine)", Module: "nodes",
			Category:    "model/conditioning/transform",
			Aliases:     "combine, merge conditioning, combine prompts, merge prompts, mix prompts, add prompt",
			Essential:   "Image Generation",
			Description: "Predicts both conditionings and averages the results.",
			Inputs: []graph.Input{
				graph.Bare("conditioning_1", "CONDITIONING"),
				graph.Bare("conditioning_2", "CONDITIONING"),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: combine,
		},
	}
}

func fluxGuidance(c *graph.Call) ([]any, error) {
	return []any{graph.Arg[value.Conditioning](c, "conditioning").Guided(c.Decimal("guidance"))}, nil
}

// zeroOut leaves the second text states as they are, as ComfyUI does (HunyuanDiT's mT5).
func zeroOut(c *graph.Call) ([]any, error) {
	return []any{graph.Arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) {
		e.Context.Data = make([]float32, len(e.Context.Data))
		if e.Pooled != nil {
			e.Pooled = make([]float32, len(e.Pooled))
		}
	})}, nil
}

func setTimestepRange(c *graph.Call) ([]any, error) {
	start, end := c.Decimal("start"), c.Decimal("end")
	return []any{graph.Arg[value.Conditioning](c,
		"conditioning").Each(func(e *value.Cond) { e.Start, e.End, e.Ranged = start, end, true })}, nil
}

func combine(c *graph.Call) ([]any, error) {
	a, b := graph.Arg[value.Conditioning](c, "conditioning_1"), graph.Arg[value.Conditioning](c, "conditioning_2")
	if n := len(a) + len(b); n > maxEntries {
		return nil, fault.At(fault.CodeBadInput, "conditioning_2",
			"conditioning_1, conditioning_2: %d entries together, at most %d are allowed", n, maxEntries)
	}
	return []any{append(append(value.Conditioning{}, a...), b...)}, nil
}

// maxEntries bounds a conditioning: forty nodes that each combine the one before with itself would ask for 2^40
// entries.
const maxEntries = 1024
