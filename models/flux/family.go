package flux

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// keyNorm begins the tensor name by which files of FLUX.1 with the original names are recognized.
const keyNorm = "double_blocks.0.img_attn.norm.key_norm."

// Family describes FLUX.1. Sizes of the releases: config.json of the transformer folders of
// black-forest-labs/FLUX.1-dev and FLUX.1-schnell.
func Family() family.Family {
	schnell := Config{
		Hidden: 3072, Heads: 24, Depth: 19, DepthSingle: 38, Axes: []int{16, 56, 56}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2, ContextDim: 4096, VectorDim: 768, MLPHidden: 12288,
	}
	others := []string{
		"double_stream_modulation_img.lin.weight", keyApproximator + "in_proj.weight",
		"txt_in.individual_token_refiner.blocks.0.norm1.weight",
	}
	dev := schnell
	dev.Guidance = true
	return family.Family{
		Name: "flux",
		Forms: []family.Form{
			{Has: keyNorm + "scale", Lacks: others},
			{Has: keyNorm + "weight", Lacks: others}, // as ComfyUI 0.33.0 saves it
			{Has: "single_transformer_blocks.0.norm.linear.weight", Aliases: true, Meta: fromDiffusers},
		},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"flux"},
			Encoders: []family.Encoder{
				{Kind: "clip_l", Layout: tokenizer.CLIPL(), Form: text.Form{Norm: true}},
				{Kind: "t5", Layout: tokenizer.T5("t5xxl", 256)},
			},
			Join: join,
		},
		Names: names(),
		Control: &family.Control{
			Kinds: "InstantX, union, inpaint, XLabs, MistoLine",
			Forms: []family.Form{
				{Has: "double_blocks.0.img_attn.norm.key_norm.scale"},
				{Has: "controlnet_x_embedder.weight", Aliases: true, Lacks: []string{
					"transformer_blocks.0.img_mlp.net.0.proj.weight",
				}},
			},
			Rest: func(net *weights.Set) map[string][]int {
				e, in := net.Dim("img_in.weight", 0), net.Dim("img_in.weight", 1)
				return family.Shapes(map[string][2]int{
					"final_layer.linear": {in, e}, "final_layer.adaLN_modulation.1": {2 * e, e},
				})
			},
			Repeat: func(_ *dit.Spec, kind dit.BlockKind, n int) int {
				if kind == dit.Single {
					return (dev.DepthSingle + n - 1) / n
				}
				return (dev.Depth + n - 1) / n
			},
		},
		Patch: &family.Patch{Refused: map[string]string{
			"feature_embedder.mid_layer_norm.bias": "the style projector of USO for FLUX.1",
		}},
		Releases: []family.Release{
			{Name: "flux-dev", Billions: 11.9, Steps: 28, Text: 512, Entries: 1, Config: dev},
			{Name: "flux-schnell", Billions: 11.89, Steps: 4, Text: 256, Entries: 1, Config: schnell},
		},
		Tiny: Config{ // with guidance
			Hidden: 96, Heads: 6, Depth: 3, DepthSingle: 4, Axes: []int{4, 6, 6}, Theta: 10000, TimeFactor: 1000,
			Channels: 16, PatchSize: 2, ContextDim: 40, VectorDim: 32, Guidance: true, MLPHidden: 384,
		},
	}
}

// join makes an entry of the states of T5 and the pooled state of CLIP-L, not projected (ComfyUI
// comfy/text_encoders/flux.py).
func join(done map[string]*text.Encoding) (dit.Entry, error) {
	return dit.Entry{Context: done["t5"].Context, Pooled: done["clip_l"].Pooled}, nil
}

// Describe implements family.Config. Guided models have a time line of their own, schnell has a plain flow.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: c.name(), Width: c.Hidden, Heads: c.Heads, PatchSize: c.PatchSize,
		Channels: c.Channels, ContextDim: c.ContextDim, PooledDim: c.VectorDim, TakesGuidance: c.Guidance,
		Biases: true, Concat: c.Concat, Prefix: c.Distilled == 0,
		References: c.Concat == 0 && c.Distilled == 0, // these lack the channels of a mask or a second image
		Blocks: append(dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Double}),
			dit.Blocks(c.DepthSingle, dit.BlockSpec{Kind: dit.Single})...),
	}
	tags := family.Tags{Dims: map[string]int{
		"F": c.MLPHidden, "V": c.VectorDim, "A": c.Distilled, "I": (c.Channels + c.Concat) * c.PatchSize * c.PatchSize,
	}, Blocks: map[string]int{"double_blocks": 0, "single_blocks": c.Depth}}
	d := family.Diffusion{
		Spec: s, Latent: latent.FLUX(), Sampling: family.Sampling{Line: family.MuLine, Shift: 1.15},
	}
	switch {
	case c.Distilled > 0: // the network always reads a guidance, 0 by default
	case c.Guidance:
		d.Guidance = 3.5 // ComfyUI model_base.Flux.extra_conds
	default: // schnell
		d.Sampling = family.Sampling{Line: family.FlowLine, Shift: 1, Multiplier: 1}
	}
	return family.Describe(set, d, tags, c.net,
		func(l family.Loaded[net]) dit.Model {
			return &Model{l.Between(l.Net.ImgIn, l.Net.Final.Linear, 0, eps), c}
		})
}
