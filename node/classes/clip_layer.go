package classes

import (
	"patchbay/node/graph"
	"patchbay/node/value"
)

// clipLayerClasses is the row that chooses the layer of the text encoders.
func clipLayerClasses() []graph.Class {
	return []graph.Class{{
		Name: "CLIPSetLastLayer", Display: "CLIP Set Last Layer", Module: "nodes", Category: "model/conditioning",
		Description: "Takes the text states of an earlier layer: -1 is the last, -2 the last but one.",
		Inputs: []graph.Input{
			graph.Bare("clip", "CLIP"),
			graph.Int("stop_at_clip_layer", "", -1, -24, -1, 1).AsAdvanced(),
		},
		Outputs: graph.Slots("CLIP"), Run: func(c *graph.Call) ([]any, error) {
			clip := *graph.Arg[*value.Clip](c, "clip")
			clip.Layer = c.Whole("stop_at_clip_layer")
			return []any{&clip}, nil
		},
	}}
}
