package node

import (
	"patchbay/models/sampling"
	"patchbay/node/fault"
	"patchbay/node/value"
)

// modelClasses are the rows that change a MODEL handle.
func modelClasses() []Class {
	shift := func(name string, preset float64) Input {
		return number(name, "FLOAT", "", "default", preset, "min", 0.0, "max", 100.0, "step", 0.01)
	}
	side := func(name string) Input {
		return number(name, "INT", "", "default", int64(1024), "min", int64(16), "max", int64(16384), "step", int64(8))
	}
	return []Class{{
		Name: "ModelSamplingFlux", Module: "comfy_extras.nodes_model_advanced", Category: "advanced/model",
		Inputs:  []Input{bareIn("model", "MODEL"), shift("max_shift", 1.15), shift("base_shift", 0.5), side("width"), side("height")},
		Outputs: slots("MODEL"), Run: modelSamplingFlux,
	}}
}

// modelSamplingFlux sets the shift from the size of the picture.
func modelSamplingFlux(c *Call) ([]any, error) {
	s, err := sampling.NewFlux(sampling.FluxShift(c.decimal("max_shift"), c.decimal("base_shift"), c.whole("width"), c.whole("height")))
	if err != nil {
		return nil, fault.At(fault.CodeBadInput, "max_shift", "max_shift, base_shift: %v", err)
	}
	return []any{arg[*value.Model](c, "model").WithSampling(s)}, nil
}
