package sdxl

import (
	"fmt"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// mark is a tensor that all families have and control nets lack, vectors one that version 1 lacks, fourth one that XL
// lacks, coarse one that XL alone has. The others are the same under diffusers' names.
const (
	mark        = "output_blocks.0.0.in_layers.0.weight"
	vectors     = "label_emb.0.0.weight"
	fourth      = "output_blocks.11.0.in_layers.0.weight"
	coarse      = "output_blocks.0.1.norm.weight"
	hinted      = "input_hint_block.0.weight" // of a control net
	diffMark    = "up_blocks.0.resnets.0.norm1.weight"
	diffVectors = "add_embedding.linear_1.weight"
	diffFourth  = "up_blocks.3.resnets.0.norm1.weight"
	diffCoarse  = "up_blocks.0.attentions.0.norm.weight"
)

// Family describes Stable Diffusion XL. Sizes of the release: stabilityai/stable-diffusion-xl-base-1.0.
func Family() family.Family {
	return family.Family{
		Name: xl,
		Forms: []family.Form{
			{Has: vectors, Lacks: []string{hinted, fourth}}, {Has: diffVectors, Lacks: []string{diffFourth}, Aliases: true},
		},
		Detect:  detect(xl),
		Markers: markers(),
		Text: family.Text{
			Types: []string{"sdxl"},
			Encoders: []family.Encoder{
				{Kind: "clip_l", Layout: tokenizer.CLIPL(), Form: text.Form{Layer: -2}},
				{Kind: "clip_g", Layout: tokenizer.CLIPG(), Form: text.Form{Layer: -2, Project: true}},
			},
			EvenChunks: true,
			Join:       join,
		},
		Names: names(levels(xl)),
		Releases: []family.Release{
			{Name: "sdxl", Billions: 2.567, Steps: 20, Text: 77, Entries: 2, Config: Config{
				Channels: 320, In: 4, Out: 4, ContextDim: 2048, VectorDim: 2816, Mult: []int{1, 2, 4}, Blocks: []int{2, 2, 2},
				Down: []int{0, 0, 2, 2, 10, 10}, Up: []int{0, 0, 0, 2, 2, 2, 10, 10, 10}, Middle: 10, HeadDim: 64, Linear: true,
				Prediction: eps,
			}},
		},
		Tiny: Config{ // for inpainting
			Channels: 32, In: 9, Out: 4, ContextDim: 48, VectorDim: 40 + 6*features, Mult: []int{1, 2, 2},
			Blocks: []int{2, 2, 2}, Down: []int{0, 0, 1, 1, 2, 2}, Up: []int{0, 0, 0, 1, 1, 1, 2, 2, 2}, Middle: 2, HeadDim: 8,
			Linear: true, Prediction: v,
		},
	}
}

// Refiner describes the refiner of Stable Diffusion XL, whose checkpoint has CLIP-G alone. Sizes of the release:
// stabilityai/stable-diffusion-xl-refiner-1.0.
func Refiner() family.Family {
	return family.Family{
		Name: refiner,
		Forms: []family.Form{
			{Has: vectors, Lacks: []string{hinted, coarse}}, {Has: diffVectors, Lacks: []string{diffCoarse}, Aliases: true},
		},
		Detect: detect(refiner),
		Text: family.Text{
			Types: []string{refiner},
			Encoders: []family.Encoder{{
				Kind: "clip_g", Layout: tokenizer.CLIPG(), Form: text.Form{Layer: -2, Project: true},
				Under: func(typ string) bool { return typ != "sd3" && typ != xl },
			}},
		},
		Names: names(levels(refiner)),
		Releases: []family.Release{
			{Name: "sdxl-refiner", Billions: 2.260, Steps: 20, Text: 77, Entries: 2, Config: Config{
				Channels: 384, In: 4, Out: 4, ContextDim: 1280, VectorDim: 2560, Mult: []int{1, 2, 4, 4},
				Blocks: []int{2, 2, 2, 2}, Down: []int{0, 0, 4, 4, 4, 4, 0, 0}, Up: []int{0, 0, 0, 4, 4, 4, 4, 4, 4, 0, 0, 0},
				Middle: 4, HeadDim: 64, Linear: true, Prediction: eps,
			}},
		},
		Tiny: Config{
			Channels: 32, In: 4, Out: 4, ContextDim: 48, VectorDim: 40 + 5*features, Mult: []int{1, 2, 2, 2},
			Blocks: []int{2, 2, 2, 2}, Down: []int{0, 0, 1, 1, 1, 1, 0, 0}, Up: []int{0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0},
			Middle: 1, HeadDim: 8, Linear: true, Prediction: eps,
		},
	}
}

// SD1 describes Stable Diffusion 1. Sizes of the release: stable-diffusion-v1-5.
func SD1() family.Family {
	return family.Family{
		Name: sd15,
		Forms: []family.Form{
			{Has: mark, Lacks: []string{vectors}}, {Has: diffMark, Lacks: []string{diffVectors}, Aliases: true},
		},
		Detect: detect(sd15),
		Text: family.Text{
			Types: []string{"stable_diffusion"},
			Encoders: []family.Encoder{
				{Kind: "clip_l", Layout: tokenizer.CLIPL(), Form: text.Form{Norm: true, Project: true}},
			},
		},
		Names: names(levels(sd15)),
		Releases: []family.Release{
			{Name: "sd1.5", Billions: 0.860, Steps: 20, Text: 77, Entries: 2, Config: Config{
				Channels: 320, In: 4, Out: 4, ContextDim: 768, Mult: []int{1, 2, 4, 4}, Blocks: []int{2, 2, 2, 2},
				Down: []int{1, 1, 1, 1, 1, 1, 0, 0}, Up: []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0}, Middle: 1, Heads: 8,
				Prediction: eps,
			}},
		},
		Tiny: Config{
			Channels: 32, In: 4, Out: 4, ContextDim: 48, Mult: []int{1, 2, 2, 2}, Blocks: []int{2, 2, 2, 2},
			Down: []int{1, 1, 1, 1, 1, 1, 0, 0}, Up: []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0}, Middle: 1, Heads: 4,
			Prediction: eps,
		},
	}
}

// Describe implements family.Config.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: c.family(), Width: c.Channels, Heads: c.heads(c.Channels), PatchSize: 1, Channels: c.Out,
		ContextDim: c.ContextDim, Concat: c.concat(), Whole: true,
		Blocks: dit.Blocks(1, dit.BlockSpec{Kind: dit.Cross}),
	}
	s.Blocks[0].Attends = 0
	d := family.Diffusion{Latent: latent.SD1(), Sampling: c.sampling()}
	if c.VectorDim > 0 {
		s.PooledDim = c.VectorDim - features*len(told(s.Family))
		d.Latent, d.Traits = latent.SDXL(), c.traits()
		if c.Prediction == edm {
			d.Latent = latent.Playground25()
		}
	}
	d.Spec = s
	tags := family.Tags{
		Dims: map[string]int{
			"M": c.Channels, "C": c.In, "O": c.Out, "V": c.VectorDim, "N": c.Channels,
		},
		Ignore: markers(),
	}
	return family.Describe(set, d, tags, c.net, func(l family.Loaded[net]) dit.Model { return &Model{l, c} })
}

// traits are those of networks that are told of the picture (ComfyUI comfy/model_base.py, SDXLRefiner.encode_adm and
// SDXL.encode_adm).
func (c Config) traits() family.Traits {
	if c.family() == refiner {
		return family.Traits{SizeCond: scoreCond, Score: 6, NegativeScore: 2.5}
	}
	return family.Traits{SizeCond: sizeCond}
}

// join puts the states of CLIP-L and CLIP-G side by side, cut to the shorter; the pooled text is that of CLIP-G
// (ComfyUI comfy/sdxl_clip.py).
func join(done map[string]*text.Encoding) (dit.Entry, error) {
	l, g := done["clip_l"], done["clip_g"]
	if l == nil || g == nil {
		return dit.Entry{}, fmt.Errorf("encode sdxl: both clip_l and clip_g are needed")
	}
	a, b := l.Context, g.Context
	out := dit.Array{Rows: min(a.Rows, b.Rows), Cols: a.Cols + b.Cols}
	for r := range out.Rows {
		out.Data = append(append(out.Data, a.Data[r*a.Cols:(r+1)*a.Cols]...), b.Data[r*b.Cols:(r+1)*b.Cols]...)
	}
	return dit.Entry{Context: out, Pooled: g.Pooled}, nil
}
