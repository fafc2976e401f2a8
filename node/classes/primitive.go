package classes

import (
	"math"

	"patchbay/node/graph"
)

// primitiveClasses are the rows that hand a literal on.
func primitiveClasses() []graph.Class {
	row := func(name, display, kind string, options ...any) graph.Class {
		return graph.Class{
			Name: name, Display: display, Module: "comfy_extras.nodes_primitive", Category: "utilities/primitive",
			NewStyle: true,
			Inputs:   []graph.Input{graph.Number("value", kind, "", options...)}, Outputs: graph.Slots(kind),
			Run: func(c *graph.Call) ([]any, error) { return []any{c.Raw("value")}, nil },
		}
	}
	const most = int64(math.MaxInt64)
	words := row("PrimitiveString", "Text", "STRING", "multiline", false)
	words.Aliases = "text, string, text box, prompt"
	lines := row("PrimitiveStringMultiline", "Text (Multiline)", "STRING", "multiline", true)
	lines.Aliases, lines.Essential = "text, string, text multiline, string multiline, text box, prompt", "Basics"
	return []graph.Class{
		row("PrimitiveInt", "Int", "INT", "min", -most, "max", most, "control_after_generate", "fixed"),
		row("PrimitiveFloat", "Float", "FLOAT", "min", -most, "max", most, "step", 0.1),
		words,
		lines,
		row("PrimitiveBoolean", "Boolean", "BOOLEAN"),
	}
}
