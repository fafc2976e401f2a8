package classes

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/models/family"
	"patchbay/models/text"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// textClasses returns the classes that encode prompts, with one text for all encoders or one for each, some with
// further inputs of the network, and T5TokenizerOptions.
func textClasses() []graph.Class {
	clip := graph.Link("clip", "CLIP", "")
	return graph.Rows(graph.Class{Outputs: graph.Slots("CONDITIONING")}, []graph.Class{
		{
			Name: "CLIPTextEncode", Display: "CLIP Text Encode (Prompt)", Category: "model/conditioning",
			Aliases: "text, prompt, text prompt, positive prompt, negative prompt, encode text, text encoder, encode prompt",
			Phase:   graph.PhaseText, Description: "Encodes a prompt for the diffusion model.",
			Inputs: []graph.Input{
				graph.Prompt("text", "the prompt; (x:1.2) weighs a part of it"), graph.Link("clip", "CLIP", "the text encoders"),
			},
			Run: func(c *graph.Call) ([]any, error) {
				return encodeText(c, c.Str("text"))
			},
		},
		{
			Name: "CLIPTextEncodeFlux", Module: "comfy_extras.nodes_flux", Category: "model/conditioning/flux",
			Phase: graph.PhaseText,
			Inputs: []graph.Input{
				clip, graph.Prompt("clip_l", ""), graph.Prompt("t5xxl", ""), graph.Float("guidance", "", 3.5, 0, 100, 0.1),
			},
			Run: encodeFlux,
		},
		{
			Name: "T5TokenizerOptions", Display: "T5 Tokenizer Options", Module: "comfy_extras.nodes_cond",
			Category: "model/conditioning", Experimental: true,
			Inputs: []graph.Input{
				clip, graph.Int("min_padding", "", 0, 0, 10000, 1), graph.Int("min_length", "", 0, 0, 10000, 1),
			},
			Outputs: graph.Slots("CLIP"), Run: t5Options,
		},
		{
			Name: "CLIPTextEncodeSD3", Display: "CLIP Text Encode (SD3)", Module: "comfy_extras.nodes_sd3",
			Category: "model/conditioning/stable diffusion", Aliases: "sd3 prompt", Phase: graph.PhaseText,
			Inputs: []graph.Input{
				clip, graph.Prompt("clip_l", ""), graph.Prompt("clip_g", ""), graph.Prompt("t5xxl", ""),
				graph.Combo("empty_padding", "", "none", "empty_prompt").AsAdvanced(),
			},
			Run: encodeSD3,
		},
		{
			Name: "CLIPTextEncodeSDXL", Display: "CLIP Text Encode (SDXL)", Module: "comfy_extras.nodes_clip_sdxl",
			Category: "model/conditioning/stable diffusion", Phase: graph.PhaseText,
			Description: "Encodes a prompt for each of SDXL's encoders, and tells the network another picture size than the " +
				"latent's, and where it was cut out.",
			Inputs: []graph.Input{
				clip, pixels("width", 1024, 0, 0), pixels("height", 1024, 0, 0), pixels("crop_w", 0, 0, 0).AsAdvanced(),
				pixels("crop_h", 0, 0, 0).AsAdvanced(), pixels("target_width", 1024, 0, 0), pixels("target_height", 1024, 0, 0),
				graph.Prompt("text_g", ""), graph.Prompt("text_l", ""),
			},
			Run: encodeSDXL,
		},
		{
			Name: "CLIPTextEncodeSDXLRefiner", Display: "CLIP Text Encode (SDXL Refiner)",
			Module: "comfy_extras.nodes_clip_sdxl", Category: "model/conditioning/stable diffusion", Phase: graph.PhaseText,
			Description: "Encodes a prompt for SDXL's refiner, and tells it another picture size than the latent's, and how " +
				"beautiful people would call the picture.",
			Inputs: []graph.Input{
				graph.Float("ascore", "aesthetic score: 6 is good, 2.5 suits negative prompts", 6, 0, 1000, 0.01),
				pixels("width", 1024, 0, 0), pixels("height", 1024, 0, 0), graph.Prompt("text", ""), clip,
			},
			Run: encodeSDXLRefiner,
		},
		{
			Name: "CLIPTextEncodeHunyuanDiT", Display: "CLIP Text Encode (Hunyuan Image)", Module: "comfy_extras.nodes_hunyuan",
			Category: "model/conditioning/hunyuan image", Phase: graph.PhaseText,
			Inputs: []graph.Input{clip, graph.Prompt("bert", ""), graph.Prompt("mt5xl", "")},
			Run:    func(c *graph.Call) ([]any, error) { return perEncoder(c, "bert") },
		},
		{
			Name: "CLIPTextEncodePixArtAlpha", Display: "CLIP Text Encode (PixArt Alpha)", Module: "comfy_extras.nodes_pixart",
			Category: "model/conditioning/pixart", Aliases: "pixart prompt", Phase: graph.PhaseText,
			Description: "Encodes a prompt and tells PixArt-Alpha another picture size than the latent's. PixArt-Sigma has " +
				"no such input.",
			Inputs: []graph.Input{pixels("width", 1024, 0, 0), pixels("height", 1024, 0, 0), graph.Prompt("text", ""), clip},
			Run:    encodePixArtAlpha,
		},
		{
			Name: "CLIPTextEncodeLumina2", Display: "CLIP Text Encode (Lumina 2)", Module: "comfy_extras.nodes_lumina2",
			Category: "model/conditioning/lumina", Aliases: "lumina prompt", Phase: graph.PhaseText,
			Description: "Puts one of two instructions in front of a prompt and encodes both.",
			Inputs: []graph.Input{
				graph.Combo("system_prompt", "superior asks for a good picture, alignment for one that follows the text",
					"superior", "alignment"),
				graph.Prompt("user_prompt", "the text to encode"), clip,
			},
			Run: encodeLumina2,
		},
	})
}

// encodeFlux encodes a prompt for each of FLUX's two encoders.
func encodeFlux(c *graph.Call) ([]any, error) {
	out, err := perEncoder(c, "clip_l")
	if err != nil {
		return nil, err
	}
	return []any{out[0].(value.Conditioning).Guided(c.Decimal("guidance"))}, nil
}

// t5Options sets lengths for every kind of T5, as ComfyUI's node does; those of absent encoders have no effect.
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

// encodeSD3 encodes a prompt for each of SD3's three encoders. With empty_padding "none" an empty T5 prompt gives no
// tokens, and two empty CLIP prompts give zeros. One empty CLIP prompt beside a non-empty one is encoded, because both
// need the same number of chunks (ComfyUI nodes_sd3).
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
	out, err := encodeText(c, c.Str("text"))
	if err != nil {
		return nil, err
	}
	sizes := family.Uncropped(h, w)
	return []any{out[0].(value.Conditioning).Each(func(e *value.Cond) { e.Sizes = &sizes })}, nil
}

// encodeSDXL encodes a prompt for each of SDXL's encoders and says what picture the network is to take it for. Texts of
// different length are filled up to the same number of chunks, as always.
func encodeSDXL(c *graph.Call) ([]any, error) {
	out, err := encodeWanted(c, func(encoder string) (string, bool) {
		if encoder == "clip_l" {
			return c.Str("text_l"), true
		}
		return c.Str("text_g"), true
	})
	if err != nil {
		return nil, err
	}
	sizes := family.Sizes{
		Height: c.Whole("height"), Width: c.Whole("width"), Top: c.Whole("crop_h"), Left: c.Whole("crop_w"),
		TargetHeight: c.Whole("target_height"), TargetWidth: c.Whole("target_width"),
	}
	return []any{out[0].(value.Conditioning).Each(func(e *value.Cond) { e.Sizes = &sizes })}, nil
}

// encodeSDXLRefiner encodes a prompt and says what picture the network is to take it for.
func encodeSDXLRefiner(c *graph.Call) ([]any, error) {
	out, err := encodeText(c, c.Str("text"))
	if err != nil {
		return nil, err
	}
	sizes, score := family.Uncropped(c.Whole("height"), c.Whole("width")), c.Decimal("ascore")
	return []any{out[0].(value.Conditioning).Each(func(e *value.Cond) { e.Sizes, e.Score = &sizes, &score })}, nil
}

// encodeLumina2 encodes a prompt after the instruction that the network was trained with (arXiv:2503.21758; ComfyUI
// comfy_extras/nodes_lumina2.py).
func encodeLumina2(c *graph.Call) ([]any, error) {
	const start = "You are an assistant designed to generate "
	text := start + "superior images with the superior degree of image-text alignment based on textual prompts or user " +
		"prompts."
	if c.Str("system_prompt") == "alignment" {
		text = start + "high-quality images with the highest degree of image-text alignment based on textual prompts."
	}
	text += " <Prompt Start> " + c.Str("user_prompt")
	return encodeText(c, text)
}

// encodeText encodes one prompt with all encoders of the clip input.
func encodeText(c *graph.Call, words string) ([]any, error) {
	return encodeWanted(c, func(string) (string, bool) { return words, true })
}

// perEncoder gives every encoder the input named by its key. Encoders without one read the first, as in ComfyUI.
func perEncoder(c *graph.Call, first string) ([]any, error) {
	return encodeWanted(c, func(key string) (string, bool) {
		if prompt, ok := c.Raw(key).(string); ok {
			return prompt, true
		}
		return c.Str(first), true
	})
}

// encodeWanted runs prompts through the encoders of the clip input. prompt returns the text for an encoder by its key,
// or wanted false to skip it.
func encodeWanted(c *graph.Call, prompt func(key string) (words string, wanted bool)) ([]any, error) {
	cond, err := encoded(c, graph.Arg[*value.Clip](c, "clip"), prompt)
	if err != nil {
		return nil, err
	}
	return []any{value.Conditioning{cond}}, nil
}

// encoded runs prompts through the encoders of a handle, and warns of embeddings that were not found.
func encoded(c *graph.Call, clip *value.Clip, prompt func(key string) (string, bool)) (value.Cond, error) {
	cond, missing, err := clip.Encode(c.Use(), prompt)
	for _, name := range missing {
		c.Warn("node %s: no embedding %q; the rest of the prompt is used", c.ID, name)
	}
	return cond, err
}

// The template for prompts about pictures, and the placeholder of one picture in a prompt.
const (
	editTemplate = "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, " +
		"objects, background), then explain how the user's text instruction should alter or modify the image. Generate a " +
		"new image that meets the user's requirements while maintaining consistency with the original input where " +
		"appropriate.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
	pictureInText = text.PictureInText
)

// editTextClasses returns the classes that encode prompts about pictures.
func editTextClasses() []graph.Class {
	row := func(name, description string, run func(*graph.Call) ([]any, error), images ...string) graph.Class {
		in := []graph.Input{
			graph.Link("clip", "CLIP", ""), graph.Prompt("prompt", ""), graph.Link("vae", "VAE", "").AsOptional(),
		}
		for _, image := range images {
			in = append(in, graph.Link(image, "IMAGE", "").AsOptional())
		}
		return graph.Class{
			Name: name, Module: "comfy_extras.nodes_qwen", Category: "model/conditioning/qwen image",
			Phase: graph.PhaseText, Description: description, Inputs: in, Outputs: graph.Slots("CONDITIONING"), Run: run,
		}
	}
	return append([]graph.Class{
		row("TextEncodeQwenImageEdit", "Encodes what is to be done with a picture.", encodeEdit, "image"),
		row("TextEncodeQwenImageEditPlus", "Encodes what is to be done with up to three pictures.", encodeEditPlus,
			"image1", "image2", "image3"),
	}, qwenImage21Classes()...)
}

// encodeEdit shows the encoder the same picture that becomes the reference, scaled to one megapixel.
func encodeEdit(c *graph.Call) ([]any, error) {
	if !c.Given("image") {
		return encodeAbout(c, "", c.Str("prompt"), nil, nil)
	}
	im, err := ofArea(c.Image("image"), 1024, 1, "image")
	if err != nil {
		return nil, err
	}
	one := []*picture.Image{im}
	return encodeAbout(c, strings.Replace(editTemplate, "{}", pictureInText+"{}", 1), c.Str("prompt"), one, one)
}

// encodeEditPlus shows the encoder smaller copies of the pictures; sides of references are multiples of 8.
func encodeEditPlus(c *graph.Call) ([]any, error) {
	var seen, references []*picture.Image
	words := ""
	for i := 1; i <= 3; i++ {
		name := fmt.Sprintf("image%d", i)
		if !c.Given(name) {
			continue
		}
		im := c.Image(name)
		small, err := ofArea(im, 384, 1, name)
		if err != nil {
			return nil, err
		}
		large, err := ofArea(im, 1024, 8, name)
		if err != nil {
			return nil, err
		}
		seen, references = append(seen, small), append(references, large)
		words += fmt.Sprintf("Picture %d: %s", i, pictureInText)
	}
	return encodeAbout(c, editTemplate, words+c.Str("prompt"), seen, references)
}

// encodeAbout encodes a prompt about the pictures in seen; with a VAE those in references become reference
// latents.
func encodeAbout(c *graph.Call, template, words string, seen, references []*picture.Image) ([]any, error) {
	clip, err := seeing(c, template, seen)
	if err != nil {
		return nil, err
	}
	cond, err := encoded(c, clip, func(string) (string, bool) { return words, true })
	if err != nil {
		return nil, err
	}
	if cond.Latents, err = encodedReferences(c, references); err != nil {
		return nil, err
	}
	return []any{value.Conditioning{cond}}, nil
}

// seeing returns the clip input with a template that refers to pictures.
func seeing(c *graph.Call, template string, seen []*picture.Image) (*value.Clip, error) {
	eyes := graph.Arg[*value.Clip](c, "clip")
	pictures, err := seenSizes(eyes, seen)
	if err != nil {
		return nil, err
	}
	return eyes.Seeing(template, pictures)
}

// seenSizes returns pictures without alpha, in sizes that an encoder takes.
func seenSizes(eyes *value.Clip, seen []*picture.Image) (out []text.Picture, err error) {
	for _, im := range seen {
		y, x := visionSides(im.Y, im.X, eyes.Unit())
		if im, err = resizedImage(im.First(3), x, y, "bilinear", "disabled", "prompt"); err != nil {
			return nil, err
		}
		out = append(out, text.Picture{Y: y, X: x, Data: im.Data})
	}
	return out, nil
}

// encodedReferences encodes pictures with the vae input; without one there are no references.
func encodedReferences(c *graph.Call, references []*picture.Image) (out []request.Latent, err error) {
	for _, im := range references {
		if !c.Given("vae") {
			break
		}
		l, err := encodeImage(c, c.VAE("vae"), im)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// ofArea returns the first picture of a batch, without alpha, scaled to about side x side pixels with sides that are
// multiples of unit.
func ofArea(im *picture.Image, side float64, unit int, field string) (*picture.Image, error) {
	by := math.Sqrt(side * side / float64(im.X*im.Y))
	scaled := func(n int) int { return rounded(float64(n)*by/float64(unit)) * unit }
	return resizedImage(im.Items(0, 1).First(3), scaled(im.X), scaled(im.Y), "area", "disabled", field)
}

// visionSides rounds picture sides to what the encoder takes: multiples of unit, 3136 to 12845056 pixels in total.
func visionSides(y, x, unit int) (high, wide int) {
	const least, most = 3136, 12845056
	to := func(n int, by float64, round func(float64) float64) int {
		return int(round(float64(n)*by/float64(unit))) * unit
	}
	high, wide = to(y, 1, math.RoundToEven), to(x, 1, math.RoundToEven)
	switch area := float64(y) * float64(x); {
	case high*wide > most:
		by := math.Sqrt(most / area)
		high, wide = max(unit, to(y, by, math.Floor)), max(unit, to(x, by, math.Floor))
	case high*wide < least:
		by := math.Sqrt(least / area)
		high, wide = to(y, by, math.Ceil), to(x, by, math.Ceil)
	}
	return high, wide
}

// generateClasses returns the classes that let a language model write.
func generateClasses() []graph.Class {
	part := func(name, tip string, preset, lo, hi float64) graph.Input {
		return graph.Float(name, tip, preset, lo, hi, 0.01)
	}
	inputs := []graph.Input{
		graph.Link("clip", "CLIP", ""),
		graph.Number("prompt", "STRING", "", "default", "", "multiline", true, "dynamicPrompts", true),
		graph.Int("max_length", "tokens at most", 512, 1, 32768, 0),
		graph.Branch("sampling_mode", "", graph.Alternative{Key: "on", Inputs: []graph.Input{
			graph.Float("temperature", "", 0.7, 0.01, 2, 1e-6),
			graph.Int("top_k", "drawn from so many of the likeliest; 0: all", 64, 0, 1000, 0), part("top_p", "", 0.95, 0, 1),
			part("min_p", "", 0.05, 0, 1), part("repetition_penalty", "", 1.05, 0, 5),
			graph.Number("seed", "INT", "", "default", int64(0), "min", int64(0), "max", uint64(1<<64-1)),
			part("presence_penalty", "", 0, 0, 5).AsOptional(),
		}}, graph.Alternative{Key: "off"}).With("display_name", "Sampling Mode"),
		graph.Link("image", "IMAGE", "").AsOptional(), graph.Link("video", "IMAGE", "not supported").AsOptional(),
		graph.Link("audio", "AUDIO", "not supported").AsOptional(),
		graph.Bool("thinking", "lets the model think first", false).AsOptional(),
		graph.Bool("use_default_template", "", true).AsOptional().AsAdvanced(),
	}
	// what later ComfyUIs added to TextGenerate
	later := []graph.Input{
		graph.Combo("mtp", "drafts of several tokens have no effect here", "auto", "off", "2", "3", "4", "5").AsOptional(),
		graph.Number("system_prompt", "STRING", "what the model is told before the prompt", "forceInput", true).AsOptional(),
	}
	one := []graph.Slot{{Name: "generated_text", Type: "STRING"}}
	return graph.Rows(graph.Class{
		Module: "comfy_extras.nodes_textgen", Category: "text", Phase: graph.PhaseText,
	}, []graph.Class{
		{
			Name: "TextGenerate", Display: "Generate Text", Aliases: "LLM, gemma",
			Description: "Has a language model write a text: Qwen3.5, or the encoder of Krea 2 or LTX-2.",
			Outputs:     append(one, graph.Slot{Name: "thinking", Type: "STRING"}),
			Inputs:      append(slices.Clip(inputs), later...), Run: func(c *graph.Call) ([]any, error) {
				out, err := written(c, c.Str("prompt"))
				text, thoughts := withoutThoughts(out, c.Str("prompt"))
				return []any{text, thoughts}, err
			},
		},
		{
			Name: "TextGenerateLTX2Prompt", Display: "Generate LTX2 Prompt", Aliases: "prompt enhance, LLM, gemma",
			Description: "Has LTX-2's language model describe a video at length from a short prompt.",
			Inputs:      inputs, Run: longerPrompt, Outputs: one,
		},
	})
}

// withoutThoughts splits what was written into the text and what was thought before it, which begins in it or at the
// end of the prompt, and has no end if it was cut short.
func withoutThoughts(written, prompt string) (words, thoughts string) {
	const begins = "<think>"
	thoughts, words, _ = strings.Cut(written, "</think>")
	if !strings.HasPrefix(strings.TrimSpace(thoughts), begins) && !strings.HasSuffix(strings.TrimSpace(prompt), begins) {
		thoughts, words = "", written
	}
	return strings.TrimSpace(words), strings.TrimSpace(strings.Replace(thoughts, begins, "", 1))
}

// written returns what the clip input writes when it is asked words, as the other inputs say.
func written(c *graph.Call, words string) (string, error) {
	clip, most := graph.Arg[*value.Clip](c, "clip"), c.Whole("max_length")
	for _, name := range []string{"video", "audio"} {
		if c.Given(name) {
			return "", fault.Bad(name, "not supported, only words and image")
		}
	}
	d := text.Sampling{MaxTokens: most, Greedy: c.Chosen("sampling_mode") == "off"}
	if !d.Greedy {
		in := func(name string) float64 { return c.Decimal("sampling_mode." + name) }
		d.TopK, d.Temperature, d.TopP, d.MinP = c.Whole("sampling_mode.top_k"), in("temperature"), in("top_p"), in("min_p")
		d.Repetition, d.Seed = in("repetition_penalty"), c.Seed("sampling_mode.seed")
		if c.Given("sampling_mode.presence_penalty") {
			d.Presence = in("presence_penalty")
		}
	}
	d.OnToken = func(n int) error {
		c.Emit(graph.Event{Type: "progress", Data: map[string]any{"value": n, "max": most, "node": c.ID}})
		return c.Context.Err()
	}
	flag := func(name string, preset bool) bool {
		if c.Given(name) {
			return c.Flag(name)
		}
		return preset
	}
	a := value.Ask{
		Words: words, Bare: !flag("use_default_template", true), Thinking: flag("thinking", false),
	}
	if c.Given("system_prompt") {
		a.System = c.Str("system_prompt")
	}
	if c.Given("image") {
		im := c.Image("image").First(3)
		y, x := visionSides(im.Y, im.X, clip.Unit())
		sized, err := resizedImage(im, x, y, "bilinear", "disabled", "image")
		if err != nil {
			return "", err
		}
		for b := range sized.B {
			a.Pictures = append(a.Pictures, text.Picture{Y: y, X: x, Data: sized.Items(b, 1).Data})
		}
	}
	return clip.Write(c.Use(), a, d)
}
