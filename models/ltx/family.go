package ltx

import (
	"math"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/weights"
)

// Family describes LTX-2. Sizes of the releases: configs in the files of Lightricks' repositories.
func Family() family.Family {
	two := Config(released())
	two.Hidden, two.Sound, two.Depth, two.Causal, two.Middles, two.Rotation = 4096, 2048, 48, true, true, halves
	two.GateScale, two.Precision = 1000, "float64"
	two.Connectors = Connectors{
		Width: 3840, SoundWidth: 3840, Depth: 2, Registers: 128, HeadDim: 128, SoundHeadDim: 128, Project: After,
	}
	later := two
	later.Gated, later.TextModulation = true, true
	later.Connectors = Connectors{
		Width: 4096, SoundWidth: 2048, Depth: 8, Registers: 128, HeadDim: 128, SoundHeadDim: 64, Gated: true, Project: None,
	}
	later.TextDim = later.Hidden + later.Sound
	usual := family.Clip{Width: 768, Height: 512, Pictures: 121}
	tiny := later
	tiny.Hidden, tiny.Sound, tiny.Depth, tiny.Heads, tiny.SoundHeads, tiny.Keyframes = 96, 48, 4, 4, 4, true
	tiny.TextDim = 56
	tiny.Connectors = Connectors{
		Width: 96, SoundWidth: 48, Depth: 2, Registers: 128, HeadDim: 24, SoundHeadDim: 12, Gated: true, Project: Before,
	}
	return family.Family{
		Name:   "ltx",
		Forms:  []family.Form{{Has: sounds}},
		Detect: Detect,
		Text:   prompts(),
		Video: family.Video{First: 1, Lead: 1, Step: cellFrames, Frames: 1, Sound: func(pictures int) (y, x int) {
			rows := float64(soundRate) / soundHop / soundRows // a second
			return int(math.RoundToEven(float64(pictures) / frameRate * rows)), soundColumns
		}},
		Releases: []family.Release{
			{Name: "ltx-2-19b", Billions: 19.4, Steps: 20, Text: textRows, Entries: 2, Clip: usual, Config: two},
			{Name: "ltx-2.3-22b", Billions: 21.0, Steps: 8, Text: textRows, Entries: 1, Clip: usual, Config: later},
		},
		Tiny: tiny,
	}
}

// textRows is how many rows a text has behind the connectors, if it is not longer.
const textRows = 1024

// Describe implements family.Config.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "ltx", Width: c.Hidden, Heads: c.Heads, PatchSize: 1, Channels: c.Channels, ContextDim: c.TextDim,
		Frames: true, Keyframes: true, FrameRate: frameRate, Connected: c.Hidden + c.Sound,
		Sound:  dit.Sound{Channels: c.SoundFeatures / soundColumns, Patch: soundColumns, Width: c.Sound, Heads: c.SoundHeads},
		Blocks: dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Cross}),
	}
	n := c.Connectors
	if n.Project == After {
		s.Connected = n.Width + n.SoundWidth
	}
	tags := family.Tags{
		Dims:   map[string]int{"A": c.Sound, "S": c.SoundFeatures, "R": n.Registers, "m": c.chunks()},
		Blocks: map[string]int{"transformer_blocks": 0},
		Perms: map[string][]int{
			"video": c.pairs(c.Hidden, c.Hidden/c.Heads), "sound": c.pairs(c.Sound, c.Sound/c.SoundHeads),
			"connector": c.pairs(n.Width, n.HeadDim), "sound connector": c.pairs(n.SoundWidth, n.SoundHeadDim),
		},
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: format(), Sampling: family.Sampling{Line: family.MuLine, Shift: 2.37},
		Traits: family.Traits{FrameTimes: true, EvenFrames: true},
	}, tags, c.net, func(l family.Loaded[net]) dit.Model { return &Model{Loaded: l, cfg: c} })
}

// pairs returns the order of rows that brings the two elements of each rotated pair of every head side by side.
func (c Config) pairs(width, d int) []int {
	order := make([]int, width)
	for i := range order {
		if order[i] = i; c.Rotation == halves {
			order[i] = i/d*d + i%d/2 + i%2*(d/2)
		}
	}
	return order
}
