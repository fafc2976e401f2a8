package classes

import (
	"math"

	"patchbay/node/graph"
)

// primitiveClasses are the rows that hand a literal on.
func primitiveClasses() []graph.Class {
	row := func(name, display, kind string, options ...any) graph.Class {
		return graph.Class{
			Name: name, Display: display, Module: "comfy_extras.nodes_primitive", Category: "utils/primitive", NewStyle: true,
			Inputs: []graph.Input{graph.Number("value", kind, "", options...)}, Outputs: graph.Slots(kind),
			Run: func(c *graph.Call) ([]any, error) { return []any{c.Raw("value")}, nil },
		}
	}
	const most = int64(math.MaxInt64)
	return []graph.Class{
		row("PrimitiveInt", "Int", "INT", "min", -most, "max", most, "control_after_generate", true),
		row("PrimitiveFloat", "Float", "FLOAT", "min", -most, "max", most, "step", 0.1),
		row("PrimitiveString", "String", "STRING", "multiline", false),
		row("PrimitiveStringMultiline", "String (Multiline)", "STRING", "multiline", true),
		row("PrimitiveBoolean", "Boolean", "BOOLEAN"),
	}
}
