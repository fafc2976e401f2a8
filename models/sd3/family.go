package sd3

import (
	"fmt"
	"strings"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes Stable Diffusion 3 and 3.5. Sizes of the releases: stabilityai/stable-diffusion-3-medium and
// -3.5-large, arXiv:2403.03206.
func Family() family.Family {
	return family.Family{
		Name:   "sd3",
		Forms:  []family.Form{{Has: "joint_blocks.0.context_block.attn.qkv.weight"}},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"sd3"},
			Encoders: []family.Encoder{
				{Kind: "clip_l", Optional: true, Layout: tokenizer.CLIPL(), Form: text.Form{Layer: -2}},
				{Kind: "clip_g", Optional: true, Layout: tokenizer.CLIPG(), Form: text.Form{Layer: -2, Project: true}},
				{Kind: "t5", Optional: true, Layout: tokenizer.T5("t5xxl", 77)},
			},
			EvenChunks: true,
			Join:       join,
		},
		Names: weights.Names{Diffusers: diffusers()},
		Control: &family.Control{
			Kinds: "diffusers",
			More:  []family.Control{embedders()},
			Forms: []family.Form{
				{Has: "joint_blocks.0.x_block.attn.qkv.weight"},
				{Has: "pos_embed_input.proj.weight", Lacks: []string{embedderMark}, Aliases: true},
			},
			Rest: rest,
			// released models have as many blocks as heads
			Repeat: func(net *dit.Spec, _ dit.BlockKind, n int) int { return max(net.Heads/n, 1) },
			Short:  1,
			// ComfyUI comfy/controlnet.py load_controlnet_mmdit
			NoShift: true, NoPooled: true,
		},
		Releases: []family.Release{
			{Name: "sd3-medium", Billions: 2.08, Steps: 28, Text: 333, Entries: 2, Config: Config{
				Hidden: 1536, Blocks: 24, Channels: 16, PatchSize: 2, PosSide: 192, ContextDim: 4096,
				PooledDim: 2048, MLPHidden: 6144,
			}},
			{Name: "sd3.5-large", Billions: 8.14, Steps: 28, Text: 333, Entries: 2, Config: Config{
				Hidden: 2432, Blocks: 38, Channels: 16, PatchSize: 2, PosSide: 192, ContextDim: 4096, PooledDim: 2048,
				MLPHidden: 9728, QKNorm: true,
			}},
		},
		Tiny: Config{ // the first two blocks attend twice
			Hidden: 256, Blocks: 4, Channels: 16, PatchSize: 2, PosSide: 32, ContextDim: 48, PooledDim: 40, MLPHidden: 512,
			QKNorm: true, Dual: []int{0, 1},
		},
	}
}

// rest returns the shapes of what a control net lacks compared with a model: the head, and a last block, whose text
// goes no further.
func rest(net *weights.Set) map[string][]int {
	e, in := net.Dim("x_embedder.proj.weight", 0), net.Dim("x_embedder.proj.weight", 1)*4
	last := net.Count("joint_blocks")
	to := fmt.Sprintf("joint_blocks.%d.", last)
	all := family.Shapes(map[string][2]int{
		"final_layer.linear": {in, e}, "final_layer.adaLN_modulation.1": {2 * e, e},
		to + "context_block.adaLN_modulation.1": {2 * e, e},
	})
	for _, key := range net.Names() {
		part, ok := strings.CutPrefix(key, fmt.Sprintf("joint_blocks.%d.", last-1))
		text, of := strings.CutPrefix(part, "context_block.")
		if ok && (!of || strings.HasPrefix(text, "attn.qkv.") || strings.HasPrefix(text, "attn.ln_")) {
			all[to+part] = net.Shape(key)
		}
	}
	return all
}

// Describe implements family.Config. The position table counts as parameters.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "sd3", Width: c.Hidden, Heads: c.Hidden / headDim, PatchSize: c.PatchSize, Channels: c.Channels,
		ContextDim: c.ContextDim, PooledDim: c.PooledDim,
		Blocks: dit.Blocks(c.Blocks, dit.BlockSpec{Kind: dit.Double}),
	}
	for i := range s.Blocks {
		if c.dual(i) {
			s.Blocks[i].Attends = 2
		}
	}
	tags := family.Tags{Dims: map[string]int{"F": c.MLPHidden, "V": c.PooledDim, "G": c.PosSide}}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: format(), Sampling: family.Sampling{Line: family.FlowLine, Shift: 3, Multiplier: 1000},
		Traits: family.Traits{NoStepCache: true},
	}, tags, c.net, func(l family.Loaded[net]) dit.Model {
		return &Model{l.Between(l.Net.Patch, l.Net.Final.Linear, 0, eps), c}
	})
}
