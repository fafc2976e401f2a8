package pixart

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes PixArt. Sizes of the releases: PixArt-alpha/PixArt-XL-2-1024-MS and PixArt-Sigma-XL-2-1024-MS.
func Family() family.Family {
	alpha := Config{
		Hidden: 1152, Heads: 16, Depth: 28, Channels: 4, PatchSize: 2, ContextDim: 4096, MLPHidden: 4608,
		MicroSize: true, Interpolation: 2,
	}
	sigma := alpha
	sigma.MicroSize = false
	return family.Family{
		Name:   "pixart",
		Forms:  []family.Form{{Has: "t_block.1.weight"}},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"pixart"},
			Encoders: []family.Encoder{ // no padding
				{Kind: "t5", Layout: tokenizer.T5("t5xxl", 1), Form: text.Form{PadReference: true}},
			},
		},
		Names: weights.Names{Diffusers: diffusers()},
		Releases: []family.Release{
			{Name: "pixart-alpha", Billions: 0.61, Steps: 20, Text: 120, Entries: 2, Config: alpha},
			{Name: "pixart-sigma", Billions: 0.61, Steps: 20, Text: 300, Entries: 2, Config: sigma},
		},
		Tiny: Config{ // with micro-conditioning
			Hidden: 120, Heads: 5, Depth: 5, Channels: 4, PatchSize: 2, ContextDim: 48, MLPHidden: 480, MicroSize: true,
			Interpolation: 2,
		},
	}
}

// Describe implements family.Config. The model is Alpha if the network takes sizes, else Sigma.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "pixart", Width: c.Hidden, Heads: c.Heads, PatchSize: c.PatchSize, Channels: c.Channels,
		OutChannels: 2 * c.Channels, ContextDim: c.ContextDim,
		Blocks: dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Cross}),
	}
	tags := family.Tags{
		Dims: map[string]int{"F": c.MLPHidden, "R": c.Hidden / 3},
		// The table of the training size is not used (positions are computed), the embedding of the empty caption is
		// only for training.
		Ignore: []string{"pos_embed", "y_embedder.y_embedding"},
	}
	d := family.Diffusion{Variant: "pixart_sigma", Spec: s, Latent: latent.SDXL(), Sampling: family.Sampling{
		Line: family.DiscreteLine, Prediction: sampling.Eps, Betas: sampling.Linear, BetaStart: 0.0001, BetaEnd: 0.02,
	}, Traits: family.Traits{SizeCond: sizeCond, TextMask: true, NoStepCache: true}}
	if c.MicroSize {
		d.Variant, d.Latent = "pixart_alpha", latent.SD1()
	}
	return family.Describe(set, d, tags, func() *net {
		return &net{
			Size: family.NewIf[sizeEmbedder](c.MicroSize), Ratio: family.NewIf[sizeEmbedder](c.MicroSize),
			Blocks: make([]block, c.Depth),
		}
	}, func(l family.Loaded[net]) dit.Model {
		return &Model{l.Between(l.Net.Patch, l.Net.Final.Linear, 0, eps), c}
	})
}

// sizeCond returns the size conditioning of Alpha: rows, columns and their ratio (ComfyUI
// model_base.PixArt.extra_conds).
func sizeCond(s family.Sizes) []float32 {
	return []float32{float32(s.Height), float32(s.Width), float32(float64(s.Height) / float64(s.Width))}
}
