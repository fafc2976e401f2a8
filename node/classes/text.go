package classes

import (
	"maps"

	"patchbay/node/graph"
	"patchbay/node/value"
)

// textClasses are the rows of the text encoders.
func textClasses() []graph.Class {
	prompt := func(name string) graph.Input { return graph.Prompt(name, "") }
	return []graph.Class{
		{
			Name: "CLIPTextEncode", Display: "CLIP Text Encode (Prompt)", Module: "nodes", Category: "model/conditioning",
			Aliases:     "text, prompt, text prompt, positive prompt, negative prompt, encode text, text encoder, encode prompt",
			Heavy:       graph.StageText,
			Description: "Encodes a prompt for the diffusion model.",
			Inputs: []graph.Input{
				graph.Prompt("text", "the prompt; (x:1.2) weighs a part of it"),
				graph.Link("clip", "CLIP", "the text encoders"),
			},
			Outputs: graph.Slots("CONDITIONING"),
			Run: func(c *graph.Call) ([]any, error) {
				t := c.Str("text")
				return encodePrompts(c, func(string) string { return t })
			},
		},
		{
			Name: "CLIPTextEncodeFlux", Module: "comfy_extras.nodes_flux", Category: "model/conditioning/flux",
			NewStyle: true, Heavy: graph.StageText,
			Inputs: []graph.Input{
				graph.Link("clip", "CLIP", ""), prompt("clip_l"), prompt("t5xxl"),
				graph.Float("guidance", "", 3.5, 0, 100, 0.1),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: encodeFlux,
		},
		{
			Name: "T5TokenizerOptions", Display: "T5 Tokenizer Options", Module: "comfy_extras.nodes_cond",
			Category: "model/conditioning", NewStyle: true,
			Experimental: true,
			Inputs: []graph.Input{
				graph.Link("clip", "CLIP", ""),
				graph.Int("min_padding", "", 0, 0, 10000, 1),
				graph.Int("min_length", "", 0, 0, 10000, 1),
			},
			Outputs: graph.Slots("CLIP"), Run: t5Options,
		},
	}
}

// encodeFlux gives the two encoders of FLUX a prompt each.
func encodeFlux(c *graph.Call) ([]any, error) {
	out, err := perEncoder(c, "clip_l")
	if err != nil {
		return nil, err
	}
	return []any{out[0].(value.Conditioning).Guided(c.Decimal("guidance"))}, nil
}

// t5Options sets lengths for every kind of T5, as ComfyUI's node does; encoders that are not there do not mind.
func t5Options(c *graph.Call) ([]any, error) {
	clip := *graph.Arg[*value.Clip](c, "clip")
	options := map[string]int{}
	maps.Copy(options, clip.TokenizerOptions)
	for _, kind := range []string{"t5xxl", "pile_t5xl", "t5base", "mt5xl", "umt5xxl"} {
		options[kind+"_min_padding"] = c.Whole("min_padding")
		options[kind+"_min_length"] = c.Whole("min_length")
	}
	clip.TokenizerOptions = options
	return []any{&clip}, nil
}
