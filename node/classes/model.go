package classes

import (
	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// modelClasses are the rows that change a MODEL handle.
func modelClasses() []graph.Class {
	shift := func(name string, preset float64) graph.Input {
		return graph.Float(name, "", preset, 0, 100, 0.01).AsAdvanced()
	}
	side := func(name string) graph.Input {
		return graph.Int(name, "", 1024, 16, 16384, 8)
	}
	return []graph.Class{{
		Name: "ModelSamplingFlux", Module: "comfy_extras.nodes_model_advanced", Category: "model/patch/flux",
		Inputs: []graph.Input{
			graph.Bare("model", "MODEL"), shift("max_shift", 1.15), shift("base_shift", 0.5),
			side("width"), side("height"),
		},
		Outputs: graph.Slots("MODEL"), Run: modelSamplingFlux,
	}}
}

// modelSamplingFlux sets the shift from the size of the picture.
func modelSamplingFlux(c *graph.Call) ([]any, error) {
	s, err := sampling.NewFlux(sampling.FluxShift(c.Decimal("max_shift"), c.Decimal("base_shift"), c.Whole("width"),
		c.Whole("height")))
	if err != nil {
		return nil, fault.At(fault.CodeBadInput, "max_shift", "max_shift, base_shift: %v", err)
	}
	return []any{graph.Arg[*value.Model](c, "model").WithSampling(s)}, nil
}
