package flux3

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// shift is the default of the time line: the logarithm of the authors' 6.93.
const shift = 1.9358598132018119

// Family describes FLUX.3. Sizes of the releases: flux3-image-klein-base and flux3-image-klein.
func Family() family.Family {
	base := Config{
		Hidden: 3072, Heads: 24, Depth: 5, DepthSingle: 28, Axes: []int{32, 32, 32, 32}, Theta: 10000, Channels: 128,
		ContextDim: 20480, MLPHidden: 9216,
	}
	distilled := base
	distilled.FlowMap = true
	return family.Family{
		Name: "flux3",
		Forms: []family.Form{
			{Has: keyForm}, {Has: "early_stream_modulations.image.linear.weight", Aliases: true},
		},
		Names:  names(),
		Detect: Detect,
		Text: family.Text{Types: []string{"flux3"}, Encoders: []family.Encoder{{
			Kind: "qwen3vl_4b", Layout: chat(),
			Form: text.Form{Taps: []int{4, 8, 12, 16, 20, 24, 28, 32}, PadsAtOne: true},
		}}},
		Releases: []family.Release{
			{Name: "flux3-klein-base", Billions: 5.54, Steps: 15, Text: minText, Entries: 1, Config: base},
			{Name: "flux3-klein", Billions: 5.55, Steps: 15, Text: minText, Entries: 1, Config: distilled},
		},
		Tiny: Config{ // distilled
			Hidden: 112, Heads: 7, Depth: 2, DepthSingle: 4, Axes: []int{4, 4, 4, 4}, Theta: 10000, Channels: 128,
			ContextDim: 128, MLPHidden: 336, FlowMap: true,
		},
	}
}

// minText is the number of rows of a short text: texts are padded to multiples of it.
const minText = 80

// chat is the layout of prompts. That ComfyUI pads them as the authors do is inferred.
func chat() tokenizer.Layout {
	l := tokenizer.Chat("qwen3vl_4b", "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", 151643)
	l.Multiple, l.MaxLength, l.Truncate = minText, 8192, true
	return l
}

func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "flux3", Width: c.Hidden, Heads: c.Heads, PatchSize: 1, Channels: c.Channels, ContextDim: c.ContextDim,
		References: true,
		Blocks: append(dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Cross}),
			dit.Blocks(c.DepthSingle, dit.BlockSpec{Kind: dit.Single})...),
	}
	tags := family.Tags{
		Dims:   map[string]int{"F": c.MLPHidden},
		Blocks: map[string]int{"content_mode_blocks.image": 0, "single_blocks": c.Depth}, // not those of text, references
		Ignore: []string{"repa_projectors."},                                             // of training
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.FLUX2(),
		// Which of its two tables ComfyUI makes of the shift is inferred (10000 entries, not 1000).
		Sampling: family.Sampling{Line: family.MuLine, Shift: shift},
	}, tags, func() *net {
		return &net{
			Next: family.NewIf[embedder](c.FlowMap), Text: make([]whole, c.Depth), Cond: make([]whole, c.Depth),
			Image: make([]block, c.Depth), Joint: make([]block, c.DepthSingle),
		}
	}, func(l family.Loaded[net]) dit.Model { return &Model{l.Between(l.Net.ImageIn, l.Net.Out, 0, eps), c} })
}
