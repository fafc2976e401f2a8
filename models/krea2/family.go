package krea2

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes Krea 2. Sizes of the release: krea2_turbo.
func Family() family.Family {
	return family.Family{
		Name:   "krea2",
		Forms:  []family.Form{{Has: "txtfusion.projector.weight"}},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"krea2"},
			Encoders: []family.Encoder{{
				Kind: "qwen3vl_4b", Layout: tokenizer.Describing("qwen3vl_4b"),
				Form: text.Form{Chat: true, Taps: []int{2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35}},
			}},
		},
		Names: names(),
		Releases: []family.Release{{Name: "krea2-turbo", Billions: 12.82, Steps: 8, Text: 96, Entries: 1, Config: Config{
			Hidden: 6144, Heads: 48, KVHeads: 12, Depth: 28, Channels: 16, MLPHidden: 16384, Taps: 12, TextWidth: 2560,
			TextHeads: 20, TextMLP: 6912, Layerwise: 2, Refiners: 2,
		}}},
		Tiny: Config{
			Hidden: 192, Heads: 12, KVHeads: 4, Depth: 4, Channels: 16, MLPHidden: 512, Taps: 12, TextWidth: 16, TextHeads: 2,
			TextMLP: 128, Layerwise: 2, Refiners: 2,
		},
	}
}

// names returns the diffusers names that adapters use (ComfyUI comfy/utils.py, krea2_to_diffusers), with diffusers'
// prefix or without.
func names() weights.Names {
	list := weights.MLP2("time_embed", "tmlp.0", "tmlp.2")
	for file, target := range map[string]string{
		"img_in": "first", "time_mod_proj": "tproj.1", "txt_in.linear_1": "txtmlp.1", "txt_in.linear_2": "txtmlp.3",
		"text_fusion.projector": "txtfusion.projector", "final_layer.linear": "last.linear",
	} {
		list = append(list, weights.Alias{File: file, Own: target})
	}
	for from, to := range map[string]string{
		"transformer_blocks.*.": "blocks.*.", "text_fusion.layerwise_blocks.*.": "txtfusion.layerwise_blocks.*.",
		"text_fusion.refiner_blocks.*.": "txtfusion.refiner_blocks.*.",
	} {
		for file, target := range map[string]string{
			"attn.to_q": "attn.wq", "attn.to_k": "attn.wk", "attn.to_v": "attn.wv", "attn.to_gate": "attn.gate",
			"attn.to_out.0": "attn.wo", "attn.to_out": "attn.wo", "ff.gate": "mlp.gate", "ff.up": "mlp.up",
			"ff.down": "mlp.down",
		} {
			list = append(list, weights.Alias{File: from + file, Own: to + target})
		}
	}
	return weights.Names{Diffusers: list, Original: list}
}

// Describe implements family.Config. The text's own blocks count as embedding.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "krea2", Width: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, PatchSize: patch, Channels: c.Channels,
		ContextDim: c.Taps * c.TextWidth, References: true,
		NeedsMethod: true,
		Blocks:      dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Single}),
	}
	tags := family.Tags{
		Dims: map[string]int{
			"F": c.MLPHidden, "W": c.TextWidth, "G": c.TextMLP, "d": c.TextWidth / c.TextHeads, "n": c.Taps,
		},
		Blocks: map[string]int{"blocks": 0},
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.Wan21(), Sampling: family.Sampling{Line: family.MuLine, Shift: 1.15},
	}, tags, func() *net {
		return &net{
			Blocks: make([]block, c.Depth),
			Fusion: fusion{Taps: make([]textBlock, c.Layerwise), Tokens: make([]textBlock, c.Refiners)},
		}
	}, func(l family.Loaded[net]) dit.Model { return &Model{l.Between(l.Net.Patch, nil, 0, 0), c} })
}
