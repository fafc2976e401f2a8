package classes

import (
	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// modelSamplingClasses are the rows that give a MODEL another time line or another treatment of masks.
func modelSamplingClasses() []graph.Class {
	flow := func(name, category string, preset, multiplier float64) graph.Class {
		return graph.Class{
			Name: name, Module: "comfy_extras.nodes_model_advanced", Category: category,
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"),
				graph.Float("shift", "", preset, 0, 100, 0.01),
			},
			Outputs: graph.Slots("MODEL"), Run: func(c *graph.Call) ([]any, error) {
				s, err := sampling.NewFlow(c.Decimal("shift"), multiplier)
				if err != nil {
					return nil, fault.Bad("shift", "%v", err)
				}
				return []any{graph.Arg[*value.Model](c, "model").WithSampling(s)}, nil
			},
		}
	}
	return []graph.Class{
		flow("ModelSamplingSD3", "model/patch/stable diffusion", 3, 1000),
		flow("ModelSamplingAuraFlow", "model/patch", 1.73, 1),
		{
			Name: "DifferentialDiffusion", Display: "Differential Diffusion",
			Module: "comfy_extras.nodes_differential_diffusion", Category: "experimental",
			Aliases:  "inpaint gradient, variable denoise strength",
			NewStyle: true, Experimental: true, Description: "Lets grey parts of a noise mask change later in the run than " +
				"white ones.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""),
				graph.Float("strength", "below 1 blends with the mask as it is", 1, 0, 1, 0.01).AsOptional(),
			},
			Outputs: graph.Slots("MODEL"), Run: func(c *graph.Call) ([]any, error) {
				m, strength := *graph.Arg[*value.Model](c, "model"), float32(1)
				if c.Given("strength") {
					strength = float32(c.Decimal("strength"))
				}
				m.Differential = &strength
				return []any{&m}, nil
			},
		},
	}
}
