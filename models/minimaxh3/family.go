package minimaxh3

import (
	"fmt"
	"math"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes MiniMax-H3. Sizes of the releases: minimax_h3_fl2va and minimax_h3_ref2va, which differ in weights
// alone, and FastH3, which is trained for sparse
// attention and brings gates for it, which dense attention does not read. Pruned files have a table of times.
func Family() family.Family {
	pruned := Config{
		Hidden: 5376, Heads: 56, HeadDim: 128, Depth: 50, Refiners: 2, MLPHidden: 14336, Channels: 24, Sound: 32,
		ContextDim: 5120, TimeDim: 8, Table: 1001, Frequencies: 16,
	}
	full := pruned
	full.TimeDim, full.TimeHidden, full.Table = 2688, 5376, 0
	usual := family.Clip{Width: 1344, Height: 768, Pictures: 124} // 5 seconds, the presets of the nodes
	return family.Family{
		Name:   "minimaxh3",
		Forms:  []family.Form{{Has: anchor}},
		Detect: Detect,
		Text: family.Text{Types: []string{"minimax"}, Encoders: []family.Encoder{{
			Kind: "qwen3vl_32b", Layout: bare(), Under: func(string) bool { return true },
		}}},
		Video: family.Video{First: 5, Lead: 2, Step: 17, Frames: 5, Sound: func(pictures int) (y, x int) {
			return 2, int(math.RoundToEven(float64(pictures) / 24 * 40)) // 24 pictures and 40 columns a second
		}},
		Releases: []family.Release{
			{Name: "minimax-h3", Billions: 20.1, Steps: 20, Text: 300, Entries: 1, Clip: usual, Config: pruned},
			{Name: "minimax-h3-full", Billions: 33.1, Steps: 20, Text: 300, Entries: 1, Clip: usual, Config: full},
		},
		Tiny: Config{
			Hidden: 96, Heads: 7, HeadDim: 16, Depth: 4, Refiners: 1, MLPHidden: 128, Channels: 24, Sound: 32, ContextDim: 40,
			TimeDim: 24, TimeHidden: 32, Frequencies: 2,
		},
	}
}

// bare is the layout of prompts, which stand as they are, with words for nothing else.
func bare() tokenizer.Layout {
	l := tokenizer.Chat("qwen3vl_32b", "", 151643)
	l.Embeddings = false
	return l
}

// Describe implements family.Config. The blocks of the text count as embedding.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "minimaxh3", Width: c.Hidden, Heads: c.Heads, HeadDim: c.HeadDim, PatchSize: patch, Channels: c.Channels,
		ContextDim: c.ContextDim, Frames: true, References: true, Sound: dit.Sound{Channels: c.Sound, Patch: 1},
		Blocks: dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Single}),
	}
	head := halves(c.HeadDim, 2*axes*c.Frequencies)
	tags := family.Tags{
		Dims: map[string]int{
			"F": c.MLPHidden, "S": c.Sound, "M": c.TimeDim, "W": c.TimeHidden, "G": c.Table, "N": c.Frequencies,
		},
		Perms:  map[string][]int{"head": head, "qkv": fused(head, c.Heads)},
		Blocks: map[string]int{"blocks": 0},
	}
	for i := range c.Depth {
		tags.Ignore = append(tags.Ignore, fmt.Sprintf("blocks.%d.attn.to_gate_compress.", i)) // of sparse attention
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.MiniMaxH3(),
		Sampling: family.Sampling{Line: family.FlowLine, Shift: 12, SoundShift: 3, Multiplier: factor},
		Traits:   family.Traits{Guides: 0.999, NeedsSound: true},
	}, tags, func() *net {
		return &net{
			Time: family.NewIf[embedder](c.Table == 0), Table: family.NewIf[table](c.Table > 0),
			Refiner: refiner{Blocks: make([]textBlock, c.Refiners)}, Blocks: make([]block, c.Depth),
		}
	}, func(l family.Loaded[net]) dit.Model { return &Model{l, c} })
}
