package node

import (
	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/value"
)

// modelSamplingClasses are the rows that give a MODEL another time line or another treatment of masks.
func modelSamplingClasses() []Class {
	flow := func(name string, preset, multiplier float64) Class {
		return Class{
			Name: name, Module: "comfy_extras.nodes_model_advanced", Category: "advanced/model",
			Inputs:  []Input{bareIn("model", "MODEL"), number("shift", "FLOAT", "", "default", preset, "min", 0.0, "max", 100.0, "step", 0.01)},
			Outputs: slots("MODEL"), Run: func(c *Call) ([]any, error) {
				s, err := sampling.NewFlow(c.decimal("shift"), multiplier)
				if err != nil {
					return nil, fault.At(fault.CodeBadInput, "shift", "shift: %v", err)
				}
				return []any{arg[*value.Model](c, "model").WithSampling(s)}, nil
			},
		}
	}
	return []Class{
		flow("ModelSamplingSD3", 3, 1000),
		flow("ModelSamplingAuraFlow", 1.73, 1),
		{
			Name: "DifferentialDiffusion", Display: "Differential Diffusion", Module: "comfy_extras.nodes_differential_diffusion", Category: "_for_testing",
			NewStyle: true, Experimental: true, Description: "Lets grey parts of a noise mask change later in the run than white ones.",
			Inputs: []Input{
				linkIn("model", "MODEL", ""),
				number("strength", "FLOAT", "below 1 blends with the mask as it is", "default", 1.0, "min", 0.0, "max", 1.0, "step", 0.01).asOptional(),
			},
			Outputs: slots("MODEL"), Run: func(c *Call) ([]any, error) {
				m, strength := *arg[*value.Model](c, "model"), float32(1)
				if c.given("strength") {
					strength = float32(c.decimal("strength"))
				}
				m.Differential = &strength
				return []any{&m}, nil
			},
		},
	}
}
