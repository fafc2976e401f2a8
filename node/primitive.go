package node

import "math"

// primitiveClasses are the rows that hand a literal on.
func primitiveClasses() []Class {
	row := func(name, display, kind string, options ...any) Class {
		return Class{
			Name: name, Display: display, Module: "comfy_extras.nodes_primitive", Category: "utils/primitive", NewStyle: true,
			Inputs: []Input{number("value", kind, "", options...)}, Outputs: slots(kind),
			Run: func(c *Call) ([]any, error) { return []any{c.raw("value")}, nil },
		}
	}
	const most = int64(math.MaxInt64)
	return []Class{
		row("PrimitiveInt", "Int", "INT", "min", -most, "max", most, "control_after_generate", true),
		row("PrimitiveFloat", "Float", "FLOAT", "min", -most, "max", most, "step", 0.1),
		row("PrimitiveString", "String", "STRING", "multiline", false),
		row("PrimitiveStringMultiline", "String (Multiline)", "STRING", "multiline", true),
		row("PrimitiveBoolean", "Boolean", "BOOLEAN"),
	}
}
