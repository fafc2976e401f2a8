package classes

import (
	"slices"

	"patchbay/models/dit"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// mixClasses are the rows that make one conditioning of two, and FLUX's switch for the guidance input.
func mixClasses() []graph.Class {
	to, from := graph.Bare("conditioning_to", "CONDITIONING"), graph.Bare("conditioning_from", "CONDITIONING")
	return []graph.Class{
		{
			Name: "ConditioningConcat", Display: "Conditioning (Concat)", Module: "nodes",
			Category:    "model/conditioning/transform",
			Description: "Puts the tokens of the second behind those of the first.",
			Inputs:      []graph.Input{to, from}, Outputs: graph.Slots("CONDITIONING"), Run: concat,
		},
		{
			Name: "ConditioningAverage", Display: "Conditioning (Average)", Module: "nodes",
			Category:    "model/conditioning/transform",
			Aliases:     "blend prompts, interpolate conditioning, mix prompts, style fusion, weighted blend",
			Description: "Mixes text states and pooled vectors.",
			Inputs:      []graph.Input{to, from, graph.Float("conditioning_to_strength", "", 1, 0, 1, 0.01)},
			Outputs:     graph.Slots("CONDITIONING"), Run: average,
		},
		{
			Name: "FluxDisableGuidance", Module: "comfy_extras.nodes_flux",
			Category: "model/conditioning/flux", NewStyle: true,
			Description: "Leaves the guidance input of distilled models out.",
			Inputs:      []graph.Input{graph.Link("conditioning", "CONDITIONING", "")}, Outputs: graph.Slots("CONDITIONING"),
			Run: func(c *graph.Call) ([]any, error) {
				return []any{graph.Arg[value.Conditioning](c,
					"conditioning").Each(func(e *value.Cond) { e.Guidance, e.NoGuidance = nil, true })}, nil
			},
		},
	}
}

// sourceOf returns the entry of conditioning_from that is mixed into every entry of conditioning_to: the first.
func sourceOf(c *graph.Call, to value.Conditioning) (*value.Cond, error) {
	from := graph.Arg[value.Conditioning](c, "conditioning_from")
	if len(from) == 0 {
		return nil, fault.Bad("conditioning_from", "has no entries")
	}
	if len(from) > 1 {
		c.Warn("node %s: conditioning_from has %d entries, only the first is used", c.ID, len(from))
	}
	for i := range to {
		if a, b := to[i].Context.Cols, from[0].Context.Cols; a != b {
			return nil, fault.Family("conditioning_from", "the text states have %d channels, those of conditioning_to %d: use "+
				"the text encoders of one family", b, a)
		}
	}
	return &from[0], nil
}

// concat joins the tokens; everything else is that of conditioning_to. Text masks of HunyuanDiT cannot be joined
// (ComfyUI fails in the network).
func concat(c *graph.Call) ([]any, error) {
	to := graph.Arg[value.Conditioning](c, "conditioning_to")
	from, err := sourceOf(c, to)
	if err != nil {
		return nil, err
	}
	for i := range to {
		if n := to[i].Context.Rows + from.Context.Rows; n > maxTokens {
			return nil, fault.Bad("conditioning_from", "%d tokens together, at most %d are allowed", n, maxTokens)
		}
		if to[i].ContextLen > 0 || from.ContextLen > 0 {
			return nil, fault.Family("conditioning_to", "text with a mask (HunyuanDiT) cannot be concatenated; use "+
				"ConditioningCombine or ConditioningAverage")
		}
	}
	return []any{to.Each(func(e *value.Cond) {
		e.Context = dit.Array{
			Rows: e.Context.Rows + from.Context.Rows, Cols: from.Context.Cols,
			Data: slices.Concat(e.Context.Data, from.Context.Data),
		}
	})}, nil
}

// maxTokens bounds the text of one entry: nodes that each append a conditioning to itself double it every time.
const maxTokens = 1 << 16

// average is to*s + from*(1-s) of text states and pooled vectors; from is cut or filled up with zeros to the tokens of
// to.
func average(c *graph.Call) ([]any, error) {
	to, s := graph.Arg[value.Conditioning](c, "conditioning_to"), c.Decimal("conditioning_to_strength")
	from, err := sourceOf(c, to)
	if err != nil {
		return nil, err
	}
	for i := range to {
		if a, b := len(to[i].Pooled), len(from.Pooled); a != b && a > 0 && b > 0 {
			return nil, fault.Family("conditioning_from", "%d pooled values, conditioning_to has %d: use the text encoders of "+
				"one family", b, a)
		}
	}
	return []any{to.Each(func(e *value.Cond) {
		e.Context.Data = weighted(e.Context.Data, from.Context.Data, float32(s), float32(1-s))
		switch {
		case from.Pooled == nil:
		case e.Pooled == nil:
			e.Pooled = from.Pooled
		default:
			e.Pooled = weighted(e.Pooled, from.Pooled, float32(s), float32(1-s))
		}
	})}, nil
}

// weighted returns a*wa + b*wb, every product rounded; b counts as 0 behind its end.
func weighted(a, b []float32, wa, wb float32) []float32 {
	out := make([]float32, len(a))
	for i, v := range a {
		other := float32(0)
		if i < len(b) {
			other = b[i]
		}
		out[i] = float32(v*wa) + float32(other*wb)
	}
	return out
}
