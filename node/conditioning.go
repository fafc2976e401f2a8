package node

import (
	"patchbay/node/fault"
	"patchbay/node/value"
)

// conditioningClasses are the rows that change conditionings.
func conditioningClasses() []Class {
	return []Class{
		{
			Name: "FluxGuidance", Module: "comfy_extras.nodes_flux", Category: "advanced/conditioning/flux", NewStyle: true,
			Description: "Sets the guidance input of distilled models such as FLUX.1 dev.",
			Inputs: []Input{
				linkIn("conditioning", "CONDITIONING", ""),
				number("guidance", "FLOAT", "higher follows the prompt more closely", "default", 3.5, "min", 0.0, "max", 100.0, "step", 0.1),
			},
			Outputs: slots("CONDITIONING"), Run: fluxGuidance,
		},
		{
			Name: "ConditioningZeroOut", Module: "nodes", Category: "advanced/conditioning",
			Description: "Replaces text states and pooled vector by zeros.",
			Inputs:      []Input{bareIn("conditioning", "CONDITIONING")}, Outputs: slots("CONDITIONING"), Run: zeroOut,
		},
		{
			Name: "ConditioningSetTimestepRange", Module: "nodes", Category: "advanced/conditioning",
			Description: "Limits a conditioning to a part of the run; 0 is its start.",
			Inputs: []Input{
				bareIn("conditioning", "CONDITIONING"),
				number("start", "FLOAT", "", "default", 0.0, "min", 0.0, "max", 1.0, "step", 0.001),
				number("end", "FLOAT", "", "default", 1.0, "min", 0.0, "max", 1.0, "step", 0.001),
			},
			Outputs: slots("CONDITIONING"), Run: setTimestepRange,
		},
		{
			Name: "ConditioningCombine", Display: "Conditioning (Combine)", Module: "nodes", Category: "conditioning",
			Description: "Predicts both conditionings and averages the results.",
			Inputs:      []Input{bareIn("conditioning_1", "CONDITIONING"), bareIn("conditioning_2", "CONDITIONING")},
			Outputs:     slots("CONDITIONING"), Run: combine,
		},
	}
}

func fluxGuidance(c *Call) ([]any, error) {
	return []any{arg[value.Conditioning](c, "conditioning").Guided(c.decimal("guidance"))}, nil
}

// zeroOut leaves the second text states as they are, as ComfyUI does (HunyuanDiT's mT5).
func zeroOut(c *Call) ([]any, error) {
	return []any{arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) {
		e.Context.Data = make([]float32, len(e.Context.Data))
		if e.Pooled != nil {
			e.Pooled = make([]float32, len(e.Pooled))
		}
	})}, nil
}

func setTimestepRange(c *Call) ([]any, error) {
	start, end := c.decimal("start"), c.decimal("end")
	return []any{arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) { e.Start, e.End, e.Ranged = start, end, true })}, nil
}

func combine(c *Call) ([]any, error) {
	a, b := arg[value.Conditioning](c, "conditioning_1"), arg[value.Conditioning](c, "conditioning_2")
	if n := len(a) + len(b); n > maxEntries {
		return nil, fault.At(fault.CodeBadInput, "conditioning_2", "conditioning_1, conditioning_2: %d entries together, at most %d are allowed", n, maxEntries)
	}
	return []any{append(append(value.Conditioning{}, a...), b...)}, nil
}

// maxEntries bounds a conditioning: forty nodes that each combine the one before with itself would ask for 2^40 entries.
const maxEntries = 1024
