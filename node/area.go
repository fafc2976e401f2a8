package node

import (
	"patchbay/node/value"
	"patchbay/parallel"
)

// areaClasses are the rows that limit a conditioning to a part of the picture.
func areaClasses() []Class {
	in := bareIn("conditioning", "CONDITIONING")
	strength := number("strength", "FLOAT", "weight against other conditionings", "default", 1.0, "min", 0.0, "max", 10.0, "step", 0.01).asLater()
	side := func(name string) Input {
		return number(name, "INT", "in pixels", "default", int64(64), "min", int64(64), "max", int64(16384), "step", int64(8))
	}
	place := func(name string) Input {
		return number(name, "INT", "in pixels", "default", int64(0), "min", int64(0), "max", int64(16384), "step", int64(8))
	}
	part := func(name string, preset any) Input {
		return number(name, "FLOAT", "part of the picture", "default", preset, "min", int64(0), "max", 1.0, "step", 0.01)
	}
	return []Class{
		{
			Name: "ConditioningSetArea", Display: "Conditioning (Set Area)", Module: "nodes", Category: "conditioning",
			Inputs:  []Input{in, side("width"), side("height"), place("x"), place("y"), strength},
			Outputs: slots("CONDITIONING"), Run: setArea,
		},
		{
			Name: "ConditioningSetAreaPercentage", Display: "Conditioning (Set Area with Percentage)", Module: "nodes", Category: "conditioning",
			Inputs:  []Input{in, part("width", 1.0), part("height", 1.0), part("x", int64(0)), part("y", int64(0)), strength},
			Outputs: slots("CONDITIONING"), Run: setAreaPart,
		},
		{
			Name: "ConditioningSetMask", Display: "Conditioning (Set Mask)", Module: "nodes", Category: "conditioning",
			Inputs:  []Input{in, bareIn("mask", "MASK"), strength, bareCombo("set_cond_area", "default", "mask bounds")},
			Outputs: slots("CONDITIONING"), Run: setMask,
		},
	}
}

// setArea takes pixels and keeps latent pixels.
func setArea(c *Call) ([]any, error) {
	area := parallel.Area{H: c.whole("height") / 8, W: c.whole("width") / 8, Y: c.whole("y") / 8, X: c.whole("x") / 8}
	strength := float32(c.decimal("strength"))
	return []any{arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) {
		e.Area, e.AreaPart, e.MaskBounds = area, nil, false
		e.Strength, e.HasStrength = strength, true
	})}, nil
}

func setAreaPart(c *Call) ([]any, error) {
	part := [4]float64{c.decimal("height"), c.decimal("width"), c.decimal("y"), c.decimal("x")}
	strength := float32(c.decimal("strength"))
	return []any{arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) {
		e.Area, e.AreaPart, e.MaskBounds = parallel.Area{}, &part, false
		e.Strength, e.HasStrength = strength, true
	})}, nil
}

func setMask(c *Call) ([]any, error) {
	m, strength, bounds := c.mask("mask"), float32(c.decimal("strength")), c.str("set_cond_area") != "default"
	return []any{arg[value.Conditioning](c, "conditioning").Each(func(e *value.Cond) {
		e.Mask, e.MaskStrength, e.MaskBounds = m, strength, bounds
	})}, nil
}
