package flux2

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
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
		Text: family.Text{
			Types: []string{"flux2"},
			Join: func(done map[string]*text.Encoding) (dit.Entry, error) {
				return dit.Entry{}, nil
			},
		},
		Names: names(),
		Releases: []family.Release{
			{Name: "flux2-klein-4b", Steps: 4, Text: minText, Entries: 1, Config: base},
			{Name: "flux2-klein-9b", Steps: 4, Text: minText, Entries: 1, Config: nine},
			{Name: "flux2-dev", Steps: 20, Text: minText, Entries: 1, Config: dev},
		},
		Tiny: Config{ // with guidance
			Hidden: 168, Heads: 7, Depth: 3, DepthSingle: 4, Axes: []int{6, 6, 6, 6}, Theta: 2000, Channels: 128,
			ContextDim: 48, MLPHidden: 504, Guidance: true,
		},
	}
}

// minText is the number of rows that texts are filled up to.
const minText = 512

// Describe describes the model.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "flux2", Width: c.Hidden, Heads: c.Heads, HeadDim: c.Hidden / c.Heads, PatchSize: 1,
		Channels: c.Channels, OutChannels: c.Channels, ContextDim: c.ContextDim, TakesGuidance: c.Guidance,
		Rotates: true, References: true, OneModulation: true,
		MLPRatio: 1.5 * float64(c.MLPHidden) / float64(c.Hidden), // three products
	}
	for range c.Depth {
		s.Blocks = append(s.Blocks, dit.BlockSpec{Kind: dit.Double, Skip: -1, Attends: 1, Cuts: true, Gated: true})
	}
	for range c.DepthSingle {
		s.Blocks = append(s.Blocks, dit.BlockSpec{Kind: dit.Single, Skip: -1, Attends: 1, Gated: true})
	}
	tags := family.Tags{Dims: map[string]int{"F": c.MLPHidden}, Block: c.block}
	d, err := family.Describe("flux2", set, s, tags, func() *net { return newNet(c) },
		func(l family.Loaded[net]) dit.Model { return &Model{l, c} })
	if err != nil {
		return nil, err
	}
	d.Latent, d.Sampling = latent.FLUX2(), family.Sampling{Line: family.MuLine, Shift: 2.02}
	d.Guidance, d.MinText = 3.5, minText // ComfyUI model_base.Flux.extra_conds, Flux2.extra_conds
	return d, nil
}

// block numbers the single blocks behind the double ones.
func (c Config) block(list string, i int) int {
	if list == "single_blocks" {
		i += c.Depth
	}
	return i
}
