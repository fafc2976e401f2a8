package qwenimage21

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes Qwen-Image-2.1. Sizes of the release: config.json of the transformer folder of Qwen/Qwen-Image-2.1.
// Turbo has the same network.
func Family() family.Family {
	released := Config{
		Hidden: 4096, Heads: 32, Depth: 32, Axes: []int{16, 56, 56}, ContextDim: 4096, Channels: 64, MLPHidden: 12288,
	}
	return family.Family{
		Name: "qwenimage21",
		Forms: []family.Form{
			{Has: split, Aliases: true},
			{Has: textNorm, Lacks: []string{split}},
		},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"qwen_image21"}, // ComfyUI's loaders know it as qwen_image
			Encoders: []family.Encoder{{
				Kind: "qwen3vl_8b", Layout: tokenizer.Analysing("qwen3vl_8b"),
				Form:  text.Form{Chat: true, KeepHeader: true, Layer: -1},
				Under: func(typ string) bool { return typ != "flux2" },
			}},
		},
		Names: names(),
		Releases: []family.Release{
			{Name: "qwen-image-2.1", Billions: 7.115, Steps: 25, Text: 100, Entries: 1, Config: released},
			{Name: "qwen-image-2.1-turbo", Billions: 7.115, Steps: 8, Text: 100, Entries: 1, Config: released},
		},
		Tiny: Config{
			Hidden: 112, Heads: 7, Depth: 4, Axes: []int{4, 6, 6}, ContextDim: 192, Channels: 64, MLPHidden: 336,
		},
	}
}

// names returns the two layers that diffusers has apart; the gate is the first half of the rows.
func names() weights.Names {
	const mlp = "transformer_blocks.*.img_mlp."
	apart := []weights.Alias{
		{File: mlp + "gate_layer", Own: mlp + "gate_up", Rows: weights.Part(0, 2)},
		{File: mlp + "proj", Own: mlp + "gate_up", Rows: weights.Part(1, 2)},
	}
	return weights.Names{Same: true, Diffusers: apart, Original: apart}
}

// Describe implements family.Config. ComfyUI's shift is constant; diffusers' follows the size of the image.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "qwenimage21", Width: c.Hidden, Heads: c.Heads, PatchSize: 1, Channels: c.Channels,
		ContextDim: c.ContextDim, References: true, Preface: true,
		Blocks: dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Cross}),
	}
	tags := family.Tags{Dims: map[string]int{"F": c.MLPHidden}}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.QwenImage21(), Sampling: family.Sampling{Line: family.MuLine, Shift: 0.69},
	}, tags, func() *net { return &net{Blocks: make([]block, c.Depth)} },
		func(l family.Loaded[net]) dit.Model { return &Model{l.Between(l.Net.ImageIn, nil, 0, 0), c} })
}
