package wan

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes Wan. Sizes of the releases: config.json of Wan-AI's repositories.
func Family() family.Family {
	large := Config{
		Hidden: 5120, Heads: 40, Depth: 40, MLPHidden: 13824, ContextDim: 4096, Channels: 16, In: 16,
	}
	small, ti2v, beside22, pictures := large, large, large, large
	small.Hidden, small.Heads, small.Depth, small.MLPHidden = 1536, 12, 30, 8960
	ti2v.Hidden, ti2v.Heads, ti2v.Depth, ti2v.MLPHidden, ti2v.Channels, ti2v.In = 3072, 24, 30, 14336, 48, 48
	beside22.In, pictures.In, pictures.VisionDim = 36, 36, 1280
	usual := family.Clip{Width: 832, Height: 480, Pictures: 81}
	later := family.Clip{Width: 1280, Height: 704, Pictures: 121}
	ends := pictures
	ends.PictureRows = 514
	return family.Family{
		Name: "wan",
		Forms: []family.Form{
			{Has: theirs, Aliases: true},
			{Has: anchor},
		},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"wan"},
			Encoders: []family.Encoder{{ // 512 rows, those behind the prompt are zeros
				Kind: "umt5", Layout: tokenizer.T5("umt5xxl", 512), Form: text.Form{Masked: true, Zeroed: true},
			}},
		},
		Names: names(),
		Video: family.Video{First: 1, Lead: 1, Step: 4, Frames: 1},
		Releases: []family.Release{
			{Name: "wan2.1-t2v-1.3b", Billions: 1.419, Steps: 30, Text: 512, Entries: 2, Clip: usual, Config: small},
			{Name: "wan2.1-t2v-14b", Billions: 14.29, Steps: 30, Text: 512, Entries: 2, Clip: usual, Config: large},
			{Name: "wan2.1-i2v-14b", Billions: 16.40, Steps: 20, Text: 512, Entries: 2, Clip: usual, Config: pictures},
			{Name: "wan2.1-flf2v-14b", Billions: 16.40, Steps: 20, Text: 512, Entries: 2, Clip: usual, Config: ends},
			{Name: "wan2.2-t2v-14b", Billions: 14.29, Steps: 20, Text: 512, Entries: 2, Clip: usual, Config: large},
			{Name: "wan2.2-i2v-14b", Billions: 14.29, Steps: 20, Text: 512, Entries: 2, Clip: usual, Config: beside22},
			{Name: "wan2.2-ti2v-5b", Billions: 5.0, Steps: 20, Text: 512, Entries: 2, Clip: later, Config: ti2v},
		},
		Tiny: Config{ // first-last frame
			Hidden: 112, Heads: 7, Depth: 4, MLPHidden: 224, ContextDim: 56, Channels: 16, In: 36, VisionDim: 48, PictureRows: 9,
		},
	}
}

// Describe implements family.Config.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "wan", Width: c.Hidden, Heads: c.Heads, PatchSize: patch, Channels: c.Channels, ContextDim: c.ContextDim,
		VisionDim: c.VisionDim, Concat: c.In - c.Channels, Frames: true,
		Blocks: dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Cross}),
	}
	format, later := latent.Wan21(), latent.Wan22()
	if c.Channels == later.Channels {
		format = later
	}
	tags := family.Tags{Dims: map[string]int{"F": c.MLPHidden, "I": c.In, "V": c.VisionDim, "R": c.PictureRows}}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: format, Sampling: family.Sampling{Line: family.FlowLine, Shift: 8, Multiplier: 1000},
		Traits: family.Traits{MaskFirst: beside, FrameTimes: format.Name == later.Name},
	}, tags, c.net, func(l family.Loaded[net]) dit.Model { return &Model{l.Between(l.Net.Patch, nil, 0, 0), c} })
}

// net returns the empty struct of the weights.
func (c Config) net() *net {
	n := &net{Blocks: make([]block, c.Depth)}
	if c.VisionDim > 0 {
		n.Vision = &vision{Positions: family.NewIf[positions](c.PictureRows > 0)}
		for i := range n.Blocks {
			n.Blocks[i].Picture = new(picture)
		}
	}
	return n
}
