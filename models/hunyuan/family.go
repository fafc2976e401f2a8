package hunyuan

import (
	"fmt"
	"strings"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes HunyuanDiT. Sizes of the release: Tencent-Hunyuan/HunyuanDiT-v1.2, arXiv:2405.08748.
func Family() family.Family {
	mt5 := tokenizer.T5("mt5xl", 256)
	mt5.Embeddings = false
	return family.Family{
		Name:   "hunyuandit",
		Forms:  []family.Form{{Has: "mlp_t5.0.weight"}},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"hunyuandit"},
			Encoders: []family.Encoder{
				{Kind: "bert", Layout: tokenizer.BERT("chinese_roberta")},
				{Kind: "mt5", Layout: mt5, Form: text.Form{Masked: true}},
			},
			Join: join,
		},
		Names: weights.Names{Tables: []string{"style_embedder.weight"}},
		Control: &family.Control{
			Kinds: "1.2 of Tencent", Forms: []family.Form{{Has: "after_proj_list.0.bias"}}, Hint: "x_embedder.proj.",
			Names: func(key string) string {
				if out, ok := strings.CutPrefix(key, "after_proj_list."); ok {
					return "controlnet_blocks." + out
				}
				return strings.Replace(key, "before_proj.", "controlnet_before.", 1)
			},
			Rest: rest, Repeat: func(*dit.Spec, dit.BlockKind, int) int { return 1 },
		},
		Releases: []family.Release{{Name: "hunyuandit", Billions: 1.5, Steps: 50, Text: 333, Entries: 2, Config: Config{
			Hidden: 1408, Heads: 16, Depth: 40, Channels: 4, PatchSize: 2, TextDim: 1024, T5Dim: 2048, MLPHidden: 6144,
			T5Hidden: 8192, PoolDim: 1024,
		}}},
		Tiny: Config{ // version 1.1, with size and style
			Hidden: 112, Heads: 7, Depth: 8, Channels: 4, PatchSize: 2, TextDim: 48, T5Dim: 64, MLPHidden: 448, T5Hidden: 256,
			PoolDim: 64, SizeCond: true, StyleCond: true,
		},
	}
}

// rest returns the shapes of what a control net lacks compared with a model: the blocks after its own, and the head.
func rest(net *weights.Set) map[string][]int {
	n, e := net.Count("blocks"), net.Dim("x_embedder.proj.weight", 0)
	token := 2 * net.Dim("x_embedder.proj.weight", 1) * net.Dim("x_embedder.proj.weight", 2) *
		net.Dim("x_embedder.proj.weight", 3)
	last := map[string][2]int{"final_layer.linear": {token, e}, "final_layer.adaLN_modulation.1": {2 * e, e}}
	out := family.Shapes(last)
	for _, key := range net.Names() {
		part, ok := strings.CutPrefix(key, "blocks.0.")
		for i := n; ok && i < 2*n+2; i++ {
			out[fmt.Sprintf("blocks.%d.%s", i, part)] = net.Shape(key)
		}
	}
	for i := n + 2; i < 2*n+2; i++ {
		at := fmt.Sprintf("blocks.%d.skip_", i)
		out[at+"norm.weight"], out[at+"norm.bias"] = []int{2 * e}, []int{2 * e}
		out[at+"linear.weight"], out[at+"linear.bias"] = []int{e, 2 * e}, []int{e}
	}
	return out
}

// join makes an entry of the states of both encoders, each with its number of valid tokens (ComfyUI
// comfy/text_encoders/hydit.py). Only the last chunk of a prompt is padded, so the valid tokens of several chunks are
// contiguous too.
func join(done map[string]*text.Encoding) (dit.Entry, error) {
	bert, mt5 := done["bert"], done["mt5"]
	return dit.Entry{
		Context: bert.Context, ContextLen: bert.ValidLen(), Context2: mt5.Context, Context2Len: mt5.ValidLen(),
	}, nil
}

func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "hunyuandit", Width: c.Hidden, Heads: c.Heads, PatchSize: c.PatchSize, Channels: c.Channels,
		OutChannels: 2 * c.Channels, ContextDim: c.TextDim, Context2Dim: c.T5Dim, ContextTokens: textLen,
		Blocks: dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Cross}),
	}
	for i := range s.Blocks {
		s.Blocks[i].Skip = c.skip(i)
	}
	tags := family.Tags{Dims: map[string]int{
		"F": c.MLPHidden, "U": c.T5Dim, "W": c.T5Hidden, "O": c.PoolDim, "X": c.extra(),
	}}
	line := family.Sampling{
		Line: family.DiscreteLine, Prediction: sampling.V, Betas: sampling.ScaledLinear, BetaStart: 0.00085, BetaEnd: 0.018,
	}
	if c.SizeCond && c.StyleCond { // versions 1.0 and 1.1
		line.BetaEnd = 0.03
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.SDXL(), Sampling: line, Traits: family.Traits{SizeCond: sizeCond, NoStepCache: true},
	}, tags, c.net, func(l family.Loaded[net]) dit.Model {
		return &Model{l.Between(l.Net.Patch, l.Net.Final.Linear, 0, eps), c}
	})
}

// sizeCond returns the size conditioning of versions 1.0 and 1.1: rows and columns of original and target, and no crop.
func sizeCond(s family.Sizes) []float32 {
	return []float32{
		float32(s.Height), float32(s.Width), float32(s.TargetHeight), float32(s.TargetWidth), 0, 0,
	}
}
