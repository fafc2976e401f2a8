package classes

import (
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
)

// areaClasses are the rows that limit a conditioning to a part of the picture.
func areaClasses() []graph.Class {
	in := graph.Bare("conditioning", "CONDITIONING")
	strength := graph.Float("strength", "weight against other conditionings", 1, 0, 10, 0.01).AsLater()
	part := func(name string, preset any) graph.Input {
		return graph.Number(name, "FLOAT", "part of the picture", "default", preset, "min", int64(0),
			"max", 1.0, "step", 0.01)
	}
	return []graph.Class{
		{
			Name: "ConditioningSetArea", Display: "Conditioning (Set Area)", Module: "nodes",
			Category: "model/conditioning/transform",
			Aliases:  "regional prompt, area prompt, spatial conditioning, localized prompt",
			Inputs: []graph.Input{
				in, pixels("width", 64, 64, 8), pixels("height", 64, 64, 8), pixels("x", 0, 0, 8), pixels("y", 0, 0, 8),
				strength,
			},
			Outputs: graph.Slots("CONDITIONING"), Run: setArea,
		},
		{
			Name: "ConditioningSetAreaPercentage", Display: "Conditioning (Set Area with Percentage)", Module: "nodes",
			Category: "model/conditioning/transform",
			Inputs: []graph.Input{
				in, part("width", 1.0), part("height", 1.0), part("x", int64(0)),
				part("y", int64(0)), strength,
			},
			Outputs: graph.Slots("CONDITIONING"), Run: setAreaPart,
		},
		{
			Name: "ConditioningSetMask", Display: "Conditioning (Set Mask)", Module: "nodes",
			Category: "model/conditioning/transform",
			Aliases:  "masked prompt, regional inpaint conditioning, mask conditioning",
			Inputs: []graph.Input{
				in, graph.Bare("mask", "MASK"), strength,
				graph.BareCombo("set_cond_area", "default", "mask bounds"),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: setMask,
		},
	}
}

// setArea takes pixels and keeps latent pixels.
func setArea(c *graph.Call) ([]any, error) {
	area := parallel.Area{H: c.Whole("height") / 8, W: c.Whole("width") / 8, Y: c.Whole("y") / 8, X: c.Whole("x") / 8}
	strength := float32(c.Decimal("strength"))
	return []any{graph.Arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) {
		e.Area, e.AreaPart, e.MaskBounds = area, nil, false
		e.Strength, e.HasStrength = strength, true
	})}, nil
}

func setAreaPart(c *graph.Call) ([]any, error) {
	part := [4]float64{c.Decimal("height"), c.Decimal("width"), c.Decimal("y"), c.Decimal("x")}
	strength := float32(c.Decimal("strength"))
	return []any{graph.Arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) {
		e.Area, e.AreaPart, e.MaskBounds = parallel.Area{}, &part, false
		e.Strength, e.HasStrength = strength, true
	})}, nil
}

func setMask(c *graph.Call) ([]any, error) {
	m, strength, bounds := c.Mask("mask"), float32(c.Decimal("strength")), c.Str("set_cond_area") != "default"
	return []any{graph.Arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) {
		e.Mask, e.MaskStrength, e.MaskBounds = m, strength, bounds
	})}, nil
}
