package node

import "patchbay/node/value"

// textClasses are the rows of the text encoders.
func textClasses() []Class {
	prompt := func(name string) Input { return promptIn(name, "") }
	return []Class{
		{
			Name: "CLIPTextEncode", Display: "CLIP Text Encode (Prompt)", Module: "nodes", Category: "conditioning", Heavy: stageText,
			Description: "Encodes a prompt for the diffusion model.",
			Inputs:      []Input{promptIn("text", "the prompt; (x:1.2) weighs a part of it"), linkIn("clip", "CLIP", "the text encoders")},
			Outputs:     slots("CONDITIONING"),
			Run: func(c *Call) ([]any, error) {
				t := c.str("text")
				return encodePrompts(c, func(string) string { return t })
			},
		},
		{
			Name: "CLIPTextEncodeFlux", Module: "comfy_extras.nodes_flux", Category: "advanced/conditioning/flux", NewStyle: true, Heavy: stageText,
			Inputs: []Input{
				linkIn("clip", "CLIP", ""), prompt("clip_l"), prompt("t5xxl"),
				number("guidance", "FLOAT", "", "default", 3.5, "min", 0.0, "max", 100.0, "step", 0.1),
			},
			Outputs: slots("CONDITIONING"), Run: encodeFlux,
		},
		{
			Name: "T5TokenizerOptions", Module: "comfy_extras.nodes_cond", Category: "_for_testing/conditioning", NewStyle: true, Experimental: true,
			Inputs: []Input{
				linkIn("clip", "CLIP", ""),
				number("min_padding", "INT", "", "default", int64(0), "min", int64(0), "max", int64(10000), "step", int64(1)),
				number("min_length", "INT", "", "default", int64(0), "min", int64(0), "max", int64(10000), "step", int64(1)),
			},
			Outputs: slots("CLIP"), Run: t5Options,
		},
	}
}

// encodeFlux gives the two encoders of FLUX a prompt each.
func encodeFlux(c *Call) ([]any, error) {
	out, err := encodePrompts(c, func(encoder string) string {
		if encoder == "clip_l" {
			return c.str("clip_l")
		}
		return c.str("t5xxl")
	})
	if err != nil {
		return nil, err
	}
	return []any{out[0].(value.Conditioning).Guided(c.decimal("guidance"))}, nil
}

// t5Options sets lengths for every kind of T5, as ComfyUI's node does; encoders that are not there do not mind.
func t5Options(c *Call) ([]any, error) {
	clip := *arg[*value.Clip](c, "clip")
	options := map[string]int{}
	for k, v := range clip.TokenizerOptions {
		options[k] = v
	}
	for _, kind := range []string{"t5xxl", "pile_t5xl", "t5base", "mt5xl", "umt5xxl"} {
		options[kind+"_min_padding"] = c.whole("min_padding")
		options[kind+"_min_length"] = c.whole("min_length")
	}
	clip.TokenizerOptions = options
	return []any{&clip}, nil
}
