package node

import "patchbay/node/value"

// clipLayerClasses is the row that chooses the layer of the text encoders.
func clipLayerClasses() []Class {
	return []Class{{
		Name: "CLIPSetLastLayer", Display: "CLIP Set Last Layer", Module: "nodes", Category: "conditioning",
		Description: "Takes the text states of an earlier layer: -1 is the last, -2 the last but one.",
		Inputs: []Input{
			bareIn("clip", "CLIP"),
			number("stop_at_clip_layer", "INT", "", "default", int64(-1), "min", int64(-24), "max", int64(-1), "step", int64(1)),
		},
		Outputs: slots("CLIP"), Run: func(c *Call) ([]any, error) {
			clip := *arg[*value.Clip](c, "clip")
			clip.Layer = c.whole("stop_at_clip_layer")
			return []any{&clip}, nil
		},
	}}
}
