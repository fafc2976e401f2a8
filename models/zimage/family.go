package zimage

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes Z-Image. Sizes of the release: Tongyi-MAI/Z-Image-Turbo.
func Family() family.Family {
	return family.Family{
		Name:   "zimage",
		Forms:  []family.Form{{Has: "noise_refiner.0.adaLN_modulation.0.weight"}},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"lumina2"},
			Encoders: []family.Encoder{{
				Kind: "qwen3", Form: text.Form{Layer: -2},
				Under:  func(typ string) bool { return typ != "flux2" },
				Layout: tokenizer.Chat("qwen3_4b", "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", 151643),
			}},
			Join: func(done map[string]*text.Encoding) (dit.Entry, error) {
				return dit.Entry{Context: done["qwen3"].Context}, nil
			},
		},
		// Adapters come with or without the prefix of diffusers.
		Names: weights.Names{Diffusers: diffusers(), Original: diffusers()},
		Releases: []family.Release{{Name: "z-image-turbo", Steps: 9, Text: 96, Entries: 1, Config: Config{
			Hidden: 3840, Heads: 30, Axes: []int{32, 48, 48}, Theta: 256, TimeFactor: 1000, Refiners: 2, Depth: 30,
			ContextDim: 2560, Channels: 16, PatchSize: 2, MLPHidden: 10240, TimeHidden: 1024, Multiple: padTo,
		}}},
		Tiny: Config{
			Hidden: 144, Heads: 6, Axes: []int{8, 8, 8}, Theta: 256, TimeFactor: 1000, Refiners: 2, Depth: 3,
			ContextDim: 48, Channels: 16, PatchSize: 2, MLPHidden: 384, TimeHidden: 160, Multiple: padTo,
		},
	}
}

// diffusers are the names of diffusers' ZImageTransformer2DModel where they differ.
func diffusers() []weights.Alias {
	var list []weights.Alias
	for _, l := range []string{"layers.*.attention.", "noise_refiner.*.attention.", "context_refiner.*.attention."} {
		list = append(list, weights.QKV(l, [3]string{"to_q", "to_k", "to_v"}, l+"qkv")...)
		list = append(list, weights.Alias{File: l + "to_out.0", Own: l + "out"})
	}
	return list
}

// Describe describes the model. The text's own blocks count as embedding.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "zimage", Width: c.Hidden, Heads: c.Heads, HeadDim: c.Hidden / c.Heads, PatchSize: c.PatchSize,
		Channels: c.Channels, OutChannels: c.Channels, ContextDim: c.ContextDim, Multiple: c.Multiple,
		Rotates: true, MLPRatio: 1.5 * float64(c.MLPHidden) / float64(c.Hidden), // three products
	}
	for range c.Refiners {
		s.Blocks = append(s.Blocks, dit.BlockSpec{Kind: dit.Cross, Skip: -1, Attends: 1, Sandwich: true, Gated: true})
	}
	for range c.Depth {
		s.Blocks = append(s.Blocks, dit.BlockSpec{Kind: dit.Single, Skip: -1, Attends: 1, Sandwich: true, Gated: true})
	}
	tags := family.Tags{Dims: map[string]int{"F": c.MLPHidden, "W": c.TimeHidden}, Block: c.block}
	d, err := family.Describe("zimage", set, s, tags, func() *net { return newNet(c) },
		func(l family.Loaded[net]) dit.Model { return &Model{l, c} })
	if err != nil {
		return nil, err
	}
	d.Latent, d.Sampling = latent.FLUX(), family.Sampling{Line: family.FlowLine, Shift: 3, Multiplier: 1}
	return d, nil
}

// block numbers the blocks of the picture, then those of both; the text's are none.
func (c Config) block(list string, i int) int {
	switch list {
	case "noise_refiner":
		return i
	case "layers":
		return c.Refiners + i
	}
	return -1
}

func newNet(c Config) *net {
	n := &net{
		Text: make([]textBlock, c.Refiners), Image: make([]modulated, c.Refiners), Layers: make([]modulated, c.Depth),
	}
	if c.Multiple > 0 {
		n.Pads = &pads{}
	}
	return n
}
