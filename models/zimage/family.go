package zimage

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// keyPlain is the tensor name by which files of Z-Image are recognized.
const keyPlain = "noise_refiner.0.adaLN_modulation.0.weight"

// Family describes Z-Image. Sizes of the release: Tongyi-MAI/Z-Image-Turbo.
func Family() family.Family {
	return family.Family{
		Name:   "zimage",
		Forms:  []family.Form{{Has: keyPlain, Lacks: []string{"dec_net.cond_embed.weight"}}}, // Z-Image in pixel space
		Detect: Detect,
		Text:   prompts(),
		Patch: &family.Patch{
			Kinds: "Fun", Form: family.Form{Has: funHint + ".weight"}, Latent: latent.FLUX(), Describe: describeFun,
		},
		Names: names(),
		Releases: []family.Release{{Name: "z-image-turbo", Billions: 6.15, Steps: 9, Text: 96, Entries: 1, Config: Config{
			Hidden: 3840, Heads: 30, Axes: []int{32, 48, 48}, Theta: 256, TimeFactor: 1000, Refiners: 2, Depth: 30,
			ContextDim: 2560, Channels: 16, PatchSize: 2, MLPHidden: 10240, TimeHidden: 1024, Multiple: padTo, Plain: true,
		}}},
		Tiny: Config{
			Hidden: 144, Heads: 6, Axes: []int{8, 8, 8}, Theta: 256, TimeFactor: 1000, Refiners: 2, Depth: 3,
			ContextDim: 48, Channels: 16, PatchSize: 2, MLPHidden: 384, TimeHidden: 160, Multiple: padTo, Plain: true,
		},
	}
}

// prompts describes the encoders of both families, which ComfyUI reads under one type: Z-Image's Qwen3 in a chat,
// Lumina 2's Gemma 2 plain.
func prompts() family.Text {
	return family.Text{
		Types: []string{"lumina2"},
		Encoders: []family.Encoder{
			{
				Kind: "qwen3", Optional: true, Form: text.Form{Layer: -2},
				Under:  func(typ string) bool { return typ != "flux2" },
				Layout: tokenizer.Chat("qwen3_4b", "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", 151643),
			},
			{
				Kind: "gemma2_2b", Optional: true, Form: text.Form{Layer: -2}, Layout: tokenizer.Gemma2("gemma2_2b"),
				Under: func(string) bool { return true },
			},
		},
	}
}

// names returns what files call the tensors otherwise. Adapters mix the names of diffusers' ZImageTransformer2DModel,
// which differ in attention and in the layers for patches of 2 x 2 pixels and one frame, with either prefix (ComfyUI
// comfy/utils.py, z_image_to_diffusers).
func names() weights.Names {
	return weights.Names{Diffusers: diffusers(), Original: diffusers(), Same: true}
}

// diffusers are the names of diffusers' model where they differ. Keys have as many rows as values, queries as many as
// the matrix has columns.
func diffusers() []weights.Alias {
	list := []weights.Alias{
		{File: "all_x_embedder.2-1", Own: "x_embedder"},
		{File: "all_final_layer.2-1.linear", Own: "final_layer.linear"},
		{File: "all_final_layer.2-1.adaLN_modulation.1", Own: "final_layer.adaLN_modulation.1"},
	}
	for _, l := range []string{"layers.*.attention.", "noise_refiner.*.attention.", "context_refiner.*.attention."} {
		list = append(list, apart(l)...)
	}
	return list
}

// apart returns the names of an attention whose queries, keys and values are stored separately.
func apart(l string) []weights.Alias {
	return []weights.Alias{
		{File: l + "to_q", Own: l + "qkv", Rows: weights.Square(0)},
		{File: l + "to_k", Own: l + "qkv", Rows: func(n, k int) (int, int) { return k, (n + k) / 2 }},
		{File: l + "to_v", Own: l + "qkv", Rows: func(n, k int) (int, int) { return (n + k) / 2, n }},
		{File: l + "to_out.0", Own: l + "out"},
	}
}

// Describe implements family.Config. The text's own blocks count as embedding.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	name, shift, vector := "lumina2", 6., c.TimeHidden // the width of the timestep embedding
	if c.Plain {
		name, shift, vector = "zimage", 3, features
	}
	s := dit.Spec{
		Family: name, Width: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, PatchSize: c.PatchSize,
		Channels: c.Channels, ContextDim: c.ContextDim, Multiple: c.Multiple,
		Blocks: append(dit.Blocks(c.Refiners, dit.BlockSpec{Kind: dit.Cross}),
			dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Single})...),
	}
	tags := family.Tags{
		Dims:   map[string]int{"F": c.MLPHidden, "W": c.TimeHidden, "M": vector},
		Blocks: map[string]int{"noise_refiner": 0, "layers": c.Refiners}, // the text's own are not among them
		Ignore: []string{"norm_final."},                                  // of Lumina 2, unused
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.FLUX(),
		Sampling: family.Sampling{Line: family.FlowLine, Shift: shift, Multiplier: 1},
	}, tags, c.net, func(l family.Loaded[net]) dit.Model { return &Model{l, c} })
}

func (c Config) net() *net {
	n := &net{
		Pads: family.NewIf[pads](c.Multiple > 0),
		Text: make([]textBlock, c.Refiners), Image: make([]modulated, c.Refiners), Layers: make([]modulated, c.Depth),
	}
	for _, blocks := range [][]modulated{n.Image, n.Layers} {
		for i := range blocks {
			blocks[i].Plain, blocks[i].Active = family.NewIf[plainMod](c.Plain), family.NewIf[activeMod](!c.Plain)
		}
	}
	return n
}
