package classes

import (
	"fmt"
	"math"
	"math/big"
	"strings"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// logicClasses returns the classes that choose between inputs, show values and pass on literals.
func logicClasses() []graph.Class {
	row := func(name, display, kind string, options ...any) graph.Class {
		return graph.Class{
			Name: name, Display: display, Module: "comfy_extras.nodes_primitive", Category: "utilities/primitive",
			Inputs: []graph.Input{graph.Number("value", kind, "", options...)}, Outputs: graph.Slots(kind),
			Run: func(c *graph.Call) ([]any, error) { return []any{c.Raw("value")}, nil },
		}
	}
	const most = int64(math.MaxInt64)
	grown := graph.Grow("values", "value", 10, graph.Link("value", "*", ""))
	words := row("PrimitiveString", "Text", "STRING", "multiline", false)
	words.Aliases = "text, string, text box, prompt"
	lines := row("PrimitiveStringMultiline", "Text (Multiline)", "STRING", "multiline", true)
	lines.Aliases, lines.Essential = "text, string, text multiline, string multiline, text box, prompt", "Basics"
	return []graph.Class{
		{
			Name: "ComfySwitchNode", Display: "If/Else Switch", Module: "comfy_extras.nodes_logic", Category: "utilities/logic",
			Aliases: "if, then, switch, conditional, branch", Experimental: true,
			Inputs: []graph.Input{
				graph.Number("switch", "BOOLEAN", ""),
				graph.Match("on_false", "switch", "*").AsLazy(), graph.Match("on_true", "switch", "*").AsLazy(),
			},
			Outputs: []graph.Slot{graph.MatchSlot("output", "switch")},
			Wants:   func(c *graph.Call) []string { return []string{side(c)} },
			Run:     func(c *graph.Call) ([]any, error) { return []any{c.Raw(side(c))}, nil },
		},
		{
			Name: "ComfyNotNode", Display: "Not", Module: "comfy_extras.nodes_logic", Category: "utilities/logic",
			Aliases:     "invert, toggle, negate, flip boolean",
			Description: "Turns true into false; 0, an empty text and false are false.",
			Inputs:      []graph.Input{graph.Link("value", "*", "")}, Outputs: graph.Slots("BOOLEAN"),
			Run: func(c *graph.Call) ([]any, error) {
				value, err := truth("value", c.Raw("value"))
				return []any{!value}, err
			},
		},
		{
			Name: "ComfyAndNode", Display: "And", Module: "comfy_extras.nodes_logic", Category: "utilities/logic",
			Aliases: "all, every", Description: "True if all values are; 0, an empty text and false are false.",
			Inputs: []graph.Input{grown}, Outputs: graph.Slots("BOOLEAN"), Run: untilTruthIs(false),
		},
		{
			Name: "ComfyOrNode", Display: "Or", Module: "comfy_extras.nodes_logic", Category: "utilities/logic",
			Aliases: "any, some", Description: "True if one of the values is; 0, an empty text and false are false.",
			Inputs: []graph.Input{grown}, Outputs: graph.Slots("BOOLEAN"), Run: untilTruthIs(true),
		},
		{
			Name: "CustomCombo", Display: "Custom Combo", Module: "comfy_extras.nodes_logic", Category: "utilities",
			Experimental: true, Inputs: []graph.Input{graph.Combo("choice", "")},
			Unlisted: []graph.Input{graph.Link("index", "*", "").AsOptional()},
			Outputs:  []graph.Slot{{Name: "STRING", Type: "STRING"}, {Name: "INDEX", Type: "INT"}},
			Run: func(c *graph.Call) ([]any, error) {
				index := any(int64(0))
				if c.Given("index") {
					index = c.Raw("index")
				}
				return []any{c.Raw("choice"), index}, nil
			},
		},
		{
			Name: "ComfyNumberConvert", Display: "Convert Number", Module: "comfy_extras.nodes_number_convert",
			Category: "utilities",
			Aliases: "int to float, float to int, number convert, int2float, float2int, cast, parse number, " +
				"string to number, bool to int",
			Inputs:  []graph.Input{graph.Number("value", "INT,FLOAT,STRING,BOOLEAN", "", "display_name", "value")},
			Outputs: graph.Slots("FLOAT", "INT"), Run: convertNumber,
		},
		{
			Name: "SeedNode", Display: "Seed", Module: "comfy_extras.nodes_seed", Category: "utilities",
			Aliases: "seed, random",
			Inputs: []graph.Input{graph.Number("seed", "INT", "", "min", int64(0), "max", most, "control_after_generate",
				"fixed")},
			Outputs: []graph.Slot{{Name: "seed", Type: "INT"}},
			Run:     func(c *graph.Call) ([]any, error) { return []any{c.Raw("seed")}, nil },
		},
		{
			Name: "PreviewAny", Display: "Preview as Text", Module: "comfy_extras.nodes_preview_any", Category: "utilities",
			Aliases: "show output, inspect, debug, print value, show text", Output: true,
			Description: "Shows any value as text.", Inputs: []graph.Input{graph.Link("source", "*", "")},
			Outputs: graph.Slots("STRING"), Run: previewAny,
		},
		{
			Name: "ResolutionSelector", Display: "Resolution Selector", Module: "comfy_extras.nodes_resolution",
			Category: "utilities", Description: "Gives the sides of a picture of an aspect and an area.",
			Inputs: []graph.Input{
				graph.Combo("aspect_ratio", "", aspects()...).With("default", aspects()[0]),
				graph.Float("megapixels", "of 1024 x 1024", 1, 0.1, 16, 0.1),
				graph.Int("multiple", "sides become multiples of this", 8, 8, 128, 4).AsAdvanced(),
			},
			Outputs: []graph.Slot{{Name: "width", Type: "INT"}, {Name: "height", Type: "INT"}}, Run: resolution,
		},
		row("PrimitiveInt", "Int", "INT", "min", -most, "max", most, "control_after_generate", "fixed"),
		row("PrimitiveFloat", "Float", "FLOAT", "min", -most, "max", most, "step", 0.1),
		words,
		lines,
		row("PrimitiveBoolean", "Boolean", "BOOLEAN"),
	}
}

// side returns the name of the input that a switch passes on.
func side(c *graph.Call) string {
	return map[bool]string{false: "on_false", true: "on_true"}[c.Flag("switch")]
}

// truth returns Python's truth value of what travels along a link; pictures, masks and sigmas have none.
func truth(field string, v any) (bool, error) {
	switch x := v.(type) {
	case *picture.Image, *picture.Mask, value.Sigmas:
		return false, fault.Bad(field, "%s is neither true nor false", graph.Describe(v))
	case value.Conditioning:
		return len(x) > 0, nil
	}
	return pyjson.Bool(v), nil
}

// untilTruthIs returns the function of a class that looks for a value that is end, and gives the opposite if there is
// none.
func untilTruthIs(end bool) func(*graph.Call) ([]any, error) {
	return func(c *graph.Call) ([]any, error) {
		names, values := c.Grown("values")
		for i, v := range values {
			if is, err := truth("values."+names[i], v); err != nil || is == end {
				return []any{is}, err
			}
		}
		return []any{!end}, nil
	}
}

// convertNumber returns a value as FLOAT and as INT, which keeps all digits of a whole number.
func convertNumber(c *graph.Call) ([]any, error) {
	v := c.Raw("value")
	f, err := pyjson.Float(v)
	if err == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
		err = fmt.Errorf("%v is not finite", f)
	}
	if err != nil {
		return nil, fault.Bad("value", "not a number: %v", err)
	}
	n, err := pyjson.Int(v)
	if err != nil { // a text with a fraction
		if n, err = pyjson.Int(f); err != nil {
			return nil, fault.Bad("value", "%v", err)
		}
	}
	if _, large := n.(*big.Int); large {
		return nil, fault.Bad("value", "%v has more than 64 bits", n)
	}
	return []any{f, n}, nil
}

func previewAny(c *graph.Call) ([]any, error) {
	source, text := c.Raw("source"), ""
	switch source.(type) {
	case string, bool, int64, uint64, float64, nil:
		text = pyjson.Str(source)
	default:
		text = graph.Describe(source)
	}
	c.Show("text", []any{text})
	return []any{text}, nil
}

// aspects lists the choices of ResolutionSelector: width, height and a name.
func aspects() []string {
	return []string{
		"1:1 (Square)", "2:3 (Portrait Photo)", "3:2 (Photo)", "3:4 (Portrait Standard)", "4:3 (Standard)",
		"9:16 (Portrait Widescreen)", "16:9 (Widescreen)", "21:9 (Ultrawide)",
	}
}

func resolution(c *graph.Call) ([]any, error) {
	var w, h float64
	ratio, multiple := c.Str("aspect_ratio"), float64(c.Whole("multiple"))
	if _, err := fmt.Sscanf(ratio, "%g:%g", &w, &h); err != nil {
		return nil, fault.Bad("aspect_ratio", "%q is not one of %s", ratio, strings.Join(aspects(), ", "))
	}
	scale := math.Sqrt(c.Decimal("megapixels") * 1024 * 1024 / (w * h))
	length := func(part float64) int64 { return int64(rounded(part*scale/multiple)) * int64(multiple) }
	return []any{length(w), length(h)}, nil
}
