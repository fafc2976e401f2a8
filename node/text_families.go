package node

import (
	"patchbay/node/fault"
	"patchbay/node/value"
)

// textFamilyClasses are the rows that give the encoders of one family a prompt each, or tell its network more than the prompt.
func textFamilyClasses() []Class {
	clip := linkIn("clip", "CLIP", "")
	side := func(name string) Input {
		return number(name, "INT", "in pixels", "default", int64(1024), "min", int64(0), "max", int64(16384))
	}
	return []Class{
		{
			Name: "CLIPTextEncodeSD3", Module: "comfy_extras.nodes_sd3", Category: "advanced/conditioning", NewStyle: true, Heavy: stageText,
			Inputs:  []Input{clip, promptIn("clip_l", ""), promptIn("clip_g", ""), promptIn("t5xxl", ""), combo("empty_padding", "", "none", "empty_prompt")},
			Outputs: slots("CONDITIONING"), Run: encodeSD3,
		},
		{
			Name: "CLIPTextEncodeHunyuanDiT", Module: "comfy_extras.nodes_hunyuan", Category: "advanced/conditioning", NewStyle: true, Heavy: stageText,
			Inputs:  []Input{clip, promptIn("bert", ""), promptIn("mt5xl", "")},
			Outputs: slots("CONDITIONING"), Run: encodeHunyuanDiT,
		},
		{
			Name: "CLIPTextEncodePixArtAlpha", Module: "comfy_extras.nodes_pixart", Category: "advanced/conditioning", NewStyle: true, Heavy: stageText,
			Description: "Encodes a prompt and tells PixArt-Alpha another picture size than the latent's. PixArt-Sigma has no such input.",
			Inputs:      []Input{side("width"), side("height"), promptIn("text", ""), clip},
			Outputs:     slots("CONDITIONING"), Run: encodePixArtAlpha,
		},
	}
}

// encodeSD3 gives the three encoders of SD3 a prompt each. With empty_padding "none" an empty T5 prompt gives no tokens, and two empty CLIP prompts give
// zeros; one empty CLIP prompt beside another that is not is encoded, because both must have as many chunks (ComfyUI nodes_sd3).
func encodeSD3(c *Call) ([]any, error) {
	l, g, none := c.str("clip_l"), c.str("clip_g"), c.str("empty_padding") == "none"
	return encodeWanted(c, func(encoder string) (string, bool) {
		switch encoder {
		case "clip_l":
			return l, !none || l+g != ""
		case "clip_g":
			return g, !none || l+g != ""
		}
		t := c.str("t5xxl")
		return t, !none || t != ""
	})
}

func encodeHunyuanDiT(c *Call) ([]any, error) {
	return encodePrompts(c, func(encoder string) string {
		if encoder == "mt5" {
			return c.str("mt5xl")
		}
		return c.str("bert")
	})
}

func encodePixArtAlpha(c *Call) ([]any, error) {
	h, w := c.whole("height"), c.whole("width")
	for _, side := range []string{"width", "height"} {
		if c.whole(side) < 1 {
			return nil, fault.At(fault.CodeBadInput, side, "%s: %d, want a picture side in pixels, at least 1", side, c.whole(side))
		}
	}
	words := c.str("text")
	out, err := encodePrompts(c, func(string) string { return words })
	if err != nil {
		return nil, err
	}
	return []any{out[0].(value.Conditioning).Each(func(e *value.Cond) { e.Pixels = [2]int{h, w} })}, nil
}
