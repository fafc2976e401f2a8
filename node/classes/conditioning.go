package classes

import (
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// conditioningClasses returns the classes that modify conditionings or how models use them.
func conditioningClasses() []graph.Class {
	in := graph.Bare("conditioning", "CONDITIONING")
	strength := graph.Float("strength", "weight against other conditionings", 1, 0, 10, 0.01).AsLater()
	part := func(name string, preset any) graph.Input {
		return graph.Number(name, "FLOAT", "part of the picture", "default", preset, "min", int64(0),
			"max", 1.0, "step", 0.01)
	}
	to, from := graph.Bare("conditioning_to", "CONDITIONING"), graph.Bare("conditioning_from", "CONDITIONING")
	base := graph.Class{Category: "model/conditioning/transform", Outputs: graph.Slots("CONDITIONING")}
	return graph.Rows(base, []graph.Class{
		{
			Name: "FluxGuidance", Module: "comfy_extras.nodes_flux", Category: "model/conditioning/flux",
			Description: "Sets the guidance input of distilled models such as FLUX.1 dev.",
			Inputs: []graph.Input{
				graph.Link("conditioning", "CONDITIONING", ""),
				graph.Float("guidance", "higher follows the prompt more closely", 3.5, 0, 100, 0.1),
			},
			Run: fluxGuidance,
		},
		{
			Name: "ConditioningZeroOut", Display: "Conditioning Zero Out", Aliases: "null conditioning, clear conditioning",
			Description: "Replaces text states and pooled vector by zeros.",
			Inputs:      []graph.Input{graph.Bare("conditioning", "CONDITIONING")}, Run: zeroOut,
		},
		{
			Name: "ConditioningSetTimestepRange", Description: "Limits a conditioning to a part of the run; 0 is its start.",
			Inputs: []graph.Input{
				graph.Bare("conditioning", "CONDITIONING"), graph.Float("start", "", 0, 0, 1, 0.001),
				graph.Float("end", "", 1, 0, 1, 0.001),
			},
			Run: setTimestepRange,
		},
		{
			Name: "ConditioningCombine", Display: "Conditioning (Combine)",
			Aliases:   "combine, merge conditioning, combine prompts, merge prompts, mix prompts, add prompt",
			Essential: "Image Generation", Description: "Predicts both conditionings and averages the results.",
			Inputs: []graph.Input{graph.Bare("conditioning_1", "CONDITIONING"), graph.Bare("conditioning_2", "CONDITIONING")},
			Run:    combine,
		},
		{
			Name: "ConditioningSetArea", Display: "Conditioning (Set Area)",
			Aliases: "regional prompt, area prompt, spatial conditioning, localized prompt",
			Inputs: []graph.Input{
				in, pixels("width", 64, 64, 8), pixels("height", 64, 64, 8), pixels("x", 0, 0, 8), pixels("y", 0, 0, 8), strength,
			},
			Run: setArea,
		},
		{
			Name: "ConditioningSetAreaPercentage", Display: "Conditioning (Set Area with Percentage)",
			Inputs: []graph.Input{
				in, part("width", 1.0), part("height", 1.0), part("x", int64(0)), part("y", int64(0)), strength,
			},
			Run: setAreaPart,
		},
		{
			Name: "ConditioningSetAreaStrength", Display: "Conditioning (Set Area Strength)",
			Inputs: []graph.Input{in, graph.Float("strength", "", 1, 0, 10, 0.01)},
			Run: func(c *graph.Call) ([]any, error) {
				strength := float32(c.Decimal("strength"))
				return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) {
					e.Strength, e.HasStrength = strength, true
				})}, nil
			},
		},
		{
			Name: "ConditioningMultiply", Display: "Conditioning (Multiply)",
			Aliases:     "scale conditioning, scale prompt, multiply conditioning, multiply prompt",
			Description: "Multiplies text states and pooled vector.",
			Inputs:      []graph.Input{in, graph.Float("multiplier", "", 1, -100, 100, 0.01)}, Run: conditioningMultiply,
		},
		{
			Name: "ConditioningSetMask", Display: "Conditioning (Set Mask)",
			Aliases: "masked prompt, regional inpaint conditioning, mask conditioning",
			Inputs: []graph.Input{
				in, graph.Bare("mask", "MASK"), strength, graph.BareCombo("set_cond_area", "default", "mask bounds"),
			},
			Run: setMask,
		},
		{
			Name: "ConditioningConcat", Display: "Conditioning (Concat)",
			Description: "Puts the tokens of the second behind those of the first.", Inputs: []graph.Input{to, from},
			Run: concat,
		},
		{
			Name: "ConditioningAverage", Display: "Conditioning (Average)",
			Aliases:     "blend prompts, interpolate conditioning, mix prompts, style fusion, weighted blend",
			Description: "Mixes text states and pooled vectors.",
			Inputs:      []graph.Input{to, from, graph.Float("conditioning_to_strength", "", 1, 0, 1, 0.01)}, Run: average,
		},
		{
			Name: "FluxDisableGuidance", Module: "comfy_extras.nodes_flux", Category: "model/conditioning/flux",
			Description: "Leaves the guidance input of distilled models out.",
			Inputs:      []graph.Input{graph.Link("conditioning", "CONDITIONING", "")}, Run: func(c *graph.Call) ([]any, error) {
				return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) {
					e.Guidance, e.NoGuidance = nil, true
				})}, nil
			},
		},
		{
			Name: "ReferenceLatent", Display: "Set Reference Latent", Module: "comfy_extras.nodes_edit_model",
			Category:    "model/conditioning",
			Description: "Gives the network a latent that the picture refers to, one more each time.",
			Inputs: []graph.Input{
				graph.Link("conditioning", "CONDITIONING", ""), graph.Link("latent", "LATENT", "").AsOptional(),
			},
			Run: referenceLatent,
		},
		{
			Name: "FluxKontextMultiReferenceLatentMethod", Display: "Edit Model Reference Method",
			Module: "comfy_extras.nodes_flux", Category: "model/conditioning/flux", Experimental: true,
			Description: "Sets where latents that the picture refers to sit beside it.",
			Inputs: []graph.Input{
				graph.Link("conditioning", "CONDITIONING", ""),
				graph.Combo("reference_latents_method", "", "offset", "index", "uxo/uno", "index_timestep_zero").AsAdvanced(),
			},
			Run: func(c *graph.Call) ([]any, error) {
				method, _, _ := strings.Cut(c.Str("reference_latents_method"), "/")
				return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) { e.Method = method })}, nil
			},
		},
		{
			Name: "CFGNorm", Module: "comfy_extras.nodes_cfg", Category: "advanced/guidance", Experimental: true,
			Description: "Scales what guidance makes of a pixel of the latent down to the length of the positive prediction.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), graph.Float("strength", "", 1, 0, 100, 0.01),
				graph.Bool("pre_cfg", "", false).AsOptional(),
			},
			Outputs: []graph.Slot{{Name: "patched_model", Type: "MODEL"}}, Run: onModel(cfgNorm),
		},
		{
			Name: "CLIPSetLastLayer", Display: "CLIP Set Last Layer", Category: "model/conditioning",
			Description: "Takes the text states of an earlier layer: -1 is the last, -2 the last but one.",
			Inputs: []graph.Input{
				graph.Bare("clip", "CLIP"), graph.Int("stop_at_clip_layer", "", -1, -24, -1, 1).AsAdvanced(),
			},
			Outputs: graph.Slots("CLIP"), Run: func(c *graph.Call) ([]any, error) {
				clip := *graph.Arg[*value.Clip](c, "clip")
				clip.Layer = c.Whole("stop_at_clip_layer")
				return []any{&clip}, nil
			},
		},
	})
}

func fluxGuidance(c *graph.Call) ([]any, error) {
	return []any{c.Conditioning("conditioning").Guided(c.Decimal("guidance"))}, nil
}

// zeroOut leaves the second text states (HunyuanDiT's mT5) as they are, as ComfyUI does.
func zeroOut(c *graph.Call) ([]any, error) {
	return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) {
		e.Context.Data = make([]float32, len(e.Context.Data))
		if e.Pooled != nil {
			e.Pooled = make([]float32, len(e.Pooled))
		}
	})}, nil
}

// conditioningMultiply leaves the second text states (HunyuanDiT's mT5) as they are, as zeroOut does.
func conditioningMultiply(c *graph.Call) ([]any, error) {
	by := float32(c.Decimal("multiplier"))
	times := func(v float32) float32 { return v * by }
	return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) {
		e.Context.Data = mapped(e.Context.Data, times)
		if e.Pooled != nil {
			e.Pooled = mapped(e.Pooled, times)
		}
	})}, nil
}

func setTimestepRange(c *graph.Call) ([]any, error) {
	start, end := c.Decimal("start"), c.Decimal("end")
	return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) {
		e.Start, e.End, e.Ranged = start, end, true
	})}, nil
}

func combine(c *graph.Call) ([]any, error) {
	a, b := c.Conditioning("conditioning_1"), c.Conditioning("conditioning_2")
	if n := len(a) + len(b); n > maxEntries {
		return nil, fault.At(fault.BadInput, "conditioning_2",
			"conditioning_1, conditioning_2: %d entries together, at most %d are allowed", n, maxEntries)
	}
	return []any{append(append(value.Conditioning{}, a...), b...)}, nil
}

// maxEntries bounds a conditioning: a chain of forty nodes that each combine the previous result with itself would ask
// for 2^40 entries.
const maxEntries = 1024

// setArea converts the area from pixels to latent pixels.
func setArea(c *graph.Call) ([]any, error) {
	area := request.Area{H: c.Whole("height") / 8, W: c.Whole("width") / 8, Y: c.Whole("y") / 8, X: c.Whole("x") / 8}
	strength := float32(c.Decimal("strength"))
	return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) {
		e.Area, e.AreaPart, e.MaskBounds = area, nil, false
		e.Strength, e.HasStrength = strength, true
	})}, nil
}

func setAreaPart(c *graph.Call) ([]any, error) {
	part := [4]float64{c.Decimal("height"), c.Decimal("width"), c.Decimal("y"), c.Decimal("x")}
	strength := float32(c.Decimal("strength"))
	return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) {
		e.Area, e.AreaPart, e.MaskBounds = request.Area{}, &part, false
		e.Strength, e.HasStrength = strength, true
	})}, nil
}

func setMask(c *graph.Call) ([]any, error) {
	m, strength, bounds := c.Mask("mask"), float32(c.Decimal("strength")), c.Str("set_cond_area") != "default"
	return []any{c.Conditioning("conditioning").Each(func(e *value.Cond) {
		e.Mask, e.MaskStrength, e.MaskBounds = m, strength, bounds
	})}, nil
}

// sourceOf returns the first entry of conditioning_from, the one that is mixed into every entry of conditioning_to.
func sourceOf(c *graph.Call, to value.Conditioning) (*value.Cond, error) {
	from := c.Conditioning("conditioning_from")
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

// concat joins the tokens. Everything else is taken from conditioning_to. Text with a mask (HunyuanDiT) cannot be
// joined (ComfyUI fails in the network).
func concat(c *graph.Call) ([]any, error) {
	to := c.Conditioning("conditioning_to")
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

// maxTokens bounds the text of one entry: every node that appends a conditioning to itself doubles it.
const maxTokens = 1 << 16

// average is to*s + from*(1-s) of text states and pooled vectors. The tokens of from are cut, or padded with zeros, to
// the number that to has.
func average(c *graph.Call) ([]any, error) {
	to, s := c.Conditioning("conditioning_to"), c.Decimal("conditioning_to_strength")
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

// weighted returns a*wa + b*wb, every product rounded to f32. b is padded with zeros to the length of a.
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

func referenceLatent(c *graph.Call) ([]any, error) {
	list := c.Conditioning("conditioning")
	if !c.Given("latent") {
		return []any{list}, nil
	}
	l := c.Layers("latent").Samples
	return []any{list.Each(func(e *value.Cond) {
		e.Latents = append(slices.Clip(e.Latents), l)
	})}, nil
}

func cfgNorm(c *graph.Call, m *value.Model) error {
	if before, _ := c.Raw("pre_cfg").(bool); before {
		return fault.Bad("pre_cfg", "true is not supported, only false")
	}
	strength := float32(c.Decimal("strength"))
	m.Norm = &strength
	return nil
}
