package flux2

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes FLUX.2. Sizes of the releases: black-forest-labs/FLUX.2-dev, FLUX.2-klein-4B and -9B.
func Family() family.Family {
	base := Config{
		Axes: []int{32, 32, 32, 32}, Theta: 2000, Channels: 128, Hidden: 3072, Heads: 24, Depth: 5, DepthSingle: 20,
		ContextDim: 7680, MLPHidden: 9216,
	}
	nine, dev := base, base
	nine.Hidden, nine.Heads, nine.Depth, nine.DepthSingle, nine.ContextDim, nine.MLPHidden = 4096, 32, 8, 24, 12288, 12288
	dev.Hidden, dev.Heads, dev.Depth, dev.DepthSingle, dev.ContextDim, dev.MLPHidden = 6144, 48, 8, 48, 15360, 18432
	dev.Guidance = true
	return family.Family{
		Name: "flux2",
		Forms: []family.Form{
			{Has: "double_stream_modulation_img.lin.weight"},
			{Has: "double_stream_modulation_img.linear.weight", Aliases: true},
		},
		Detect: Detect,
		Text:   family.Text{Types: []string{"flux2"}, Encoders: encoders()},
		Names:  names(),
		Releases: []family.Release{
			{Name: "flux2-klein-4b", Billions: 3.88, Steps: 4, Text: minText, Entries: 1, Config: base},
			{Name: "flux2-klein-9b", Billions: 9.08, Steps: 4, Text: minText, Entries: 1, Config: nine},
			{Name: "flux2-dev", Billions: 32.22, Steps: 20, Text: minText, Entries: 1, Config: dev},
		},
		Tiny: Config{ // with guidance
			Hidden: 112, Heads: 7, Depth: 3, DepthSingle: 4, Axes: []int{4, 4, 4, 4}, Theta: 2000, Channels: 128,
			ContextDim: 48, MLPHidden: 336, Guidance: true,
		},
	}
}

// chat is the prompt layout of klein's encoder, the Qwen3 that key names: a chat whose answer begins with an empty
// thought.
func chat(key string) tokenizer.Layout {
	l := tokenizer.Chat(key, "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", 151643)
	l.MinLength = minText
	return l
}

// instruct is the prompt layout of dev's encoder.
func instruct() tokenizer.Layout {
	l := tokenizer.Chat("mistral3_24b", "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give "+
		"structured responses focusing on object relationships, object\nattribution and actions without "+
		"speculation.[/SYSTEM_PROMPT][INST]{}[/INST]", 11)
	l.Start = 1
	return l
}

// encoders are Qwen3 (or the language part of Qwen3-VL) for klein and Mistral Small 3 for dev; one of them is required.
// ComfyUI recognizes the two that no other family reads under any type of the loader.
func encoders() []family.Encoder {
	klein, any := text.Form{Taps: []int{9, 18, 27}}, func(string) bool { return true }
	return []family.Encoder{
		{Kind: "qwen3", Optional: true, Form: klein, Layout: chat("qwen3_4b")},
		{Kind: "qwen3vl_4b", Optional: true, Form: klein, Layout: chat("qwen3_4b")},
		{Kind: "qwen3_8b", Optional: true, Form: klein, Layout: chat("qwen3_8b"), Under: any},
		{Kind: "qwen3vl_8b", Optional: true, Form: klein, Layout: chat("qwen3_8b")},
		{
			Kind: "mistral3", Optional: true, Form: text.Form{Taps: []int{10, 20, 30}}, Layout: instruct(), Under: any,
		},
	}
}

// minText is the number of rows that shorter texts are filled up to.
const minText = 512

func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "flux2", Width: c.Hidden, Heads: c.Heads, PatchSize: 1, Channels: c.Channels, ContextDim: c.ContextDim,
		TakesGuidance: c.Guidance, References: true,
		Blocks: append(dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Double}),
			dit.Blocks(c.DepthSingle, dit.BlockSpec{Kind: dit.Single})...),
	}
	tags := family.Tags{
		Dims:   map[string]int{"F": c.MLPHidden},
		Blocks: map[string]int{"double_blocks": 0, "single_blocks": c.Depth},
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.FLUX2(), Sampling: family.Sampling{Line: family.MuLine, Shift: 2.02},
		Traits: family.Traits{Guidance: 3.5, MinText: minText}, // ComfyUI model_base.Flux.extra_conds, Flux2.extra_conds
	}, tags, func() *net {
		return &net{
			Guidance: family.NewIf[embedder](c.Guidance), Double: make([]double, c.Depth), Single: make([]single, c.DepthSingle),
		}
	}, func(l family.Loaded[net]) dit.Model { return &Model{l.Between(l.Net.ImgIn, l.Net.Out, 0, eps), c} })
}
