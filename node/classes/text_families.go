package classes

import (
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// textFamilyClasses are the rows that give the encoders of one family a prompt each, or tell its network more than the
// prompt.
func textFamilyClasses() []graph.Class {
	clip := graph.Link("clip", "CLIP", "")
	return []graph.Class{
		{
			Name: "CLIPTextEncodeSD3", Display: "CLIP Text Encode (SD3)", Module: "comfy_extras.nodes_sd3",
			Category: "model/conditioning/stable diffusion",
			Aliases:  "sd3 prompt", NewStyle: true,
			Heavy: graph.StageText,
			Inputs: []graph.Input{
				clip, graph.Prompt("clip_l", ""), graph.Prompt("clip_g", ""), graph.Prompt("t5xxl", ""),
				graph.Combo("empty_padding", "", "none", "empty_prompt").AsAdvanced(),
			},
			Outputs: graph.Slots("CONDITIONING"), Run: encodeSD3,
		},
		{
			Name: "CLIPTextEncodeHunyuanDiT", Display: "CLIP Text Encode (Hunyuan Image)",
			Module: "comfy_extras.nodes_hunyuan", Category: "model/conditioning/hunyuan image",
			NewStyle: true, Heavy: graph.StageText,
			Inputs:  []graph.Input{clip, graph.Prompt("bert", ""), graph.Prompt("mt5xl", "")},
			Outputs: graph.Slots("CONDITIONING"),
			Run:     func(c *graph.Call) ([]any, error) { return perEncoder(c, "bert") },
		},
		{
			Name: "CLIPTextEncodePixArtAlpha", Display: "CLIP Text Encode (PixArt Alpha)",
			Module: "comfy_extras.nodes_pixart", Category: "model/conditioning/pixart",
			Aliases:  "pixart prompt",
			NewStyle: true, Heavy: graph.StageText,
			Description: "Encodes a prompt and tells PixArt-Alpha another picture size than the latent's. PixArt-Sigma has " +
				"no such input.",
			Inputs:  []graph.Input{pixels("width", 1024, 0, 0), pixels("height", 1024, 0, 0), graph.Prompt("text", ""), clip},
			Outputs: graph.Slots("CONDITIONING"), Run: encodePixArtAlpha,
		},
		{
			Name: "CLIPTextEncodeLumina2", Display: "CLIP Text Encode (Lumina 2)", Module: "comfy_extras.nodes_lumina2",
			Category: "model/conditioning/lumina", Aliases: "lumina prompt", NewStyle: true, Heavy: graph.StageText,
			Description: "Puts one of two instructions in front of a prompt and encodes both.",
			Inputs: []graph.Input{
				graph.Combo("system_prompt", "superior asks for a good picture, alignment for one that follows the text",
					"superior", "alignment"),
				graph.Prompt("user_prompt", "the text to encode"), clip,
			},
			Outputs: graph.Slots("CONDITIONING"), Run: encodeLumina2,
		},
	}
}

// encodeSD3 gives the three encoders of SD3 a prompt each. With empty_padding "none" an empty T5 prompt gives no
// tokens, and two empty CLIP prompts give zeros; one empty CLIP prompt beside another that is not is encoded, because
// both must have as many chunks (ComfyUI nodes_sd3).
func encodeSD3(c *graph.Call) ([]any, error) {
	l, g, none := c.Str("clip_l"), c.Str("clip_g"), c.Str("empty_padding") == "none"
	return encodeWanted(c, func(encoder string) (string, bool) {
		switch encoder {
		case "clip_l":
			return l, !none || l+g != ""
		case "clip_g":
			return g, !none || l+g != ""
		}
		t := c.Str("t5xxl")
		return t, !none || t != ""
	})
}

func encodePixArtAlpha(c *graph.Call) ([]any, error) {
	h, w := c.Whole("height"), c.Whole("width")
	for _, side := range []string{"width", "height"} {
		if c.Whole(side) < 1 {
			return nil, fault.Bad(side, "%d, want a picture side in pixels, at least 1", c.Whole(side))
		}
	}
	words := c.Str("text")
	out, err := encodePrompts(c, func(string) string { return words })
	if err != nil {
		return nil, err
	}
	return []any{out[0].(value.Conditioning).Each(func(e *value.Cond) { e.Pixels = [2]int{h, w} })}, nil
}

// encodeLumina2 encodes a prompt behind the instruction that the network was trained with (arXiv:2503.21758;
// ComfyUI comfy_extras/nodes_lumina2.py).
func encodeLumina2(c *graph.Call) ([]any, error) {
	const start = "You are an assistant designed to generate "
	text := start + "superior images with the superior degree of image-text alignment based on textual prompts or user " +
		"prompts."
	if c.Str("system_prompt") == "alignment" {
		text = start + "high-quality images with the highest degree of image-text alignment based on textual prompts."
	}
	text += " <Prompt Start> " + c.Str("user_prompt")
	return encodePrompts(c, func(string) string { return text })
}
