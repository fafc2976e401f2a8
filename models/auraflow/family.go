package auraflow

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes AuraFlow. Sizes of the release: fal/AuraFlow-v0.3.
func Family() family.Family {
	return family.Family{
		Name: "auraflow",
		Forms: []family.Form{
			{Has: "double_layers.0.attn.w1q.weight"},
			{Has: "joint_transformer_blocks.0.attn.add_k_proj.weight", Aliases: true},
		},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"auraflow"}, // not a type of ComfyUI, which goes by the encoder
			Encoders: []family.Encoder{{
				Kind: "pile_t5xl", Layout: tokenizer.PileT5("pile_t5xl"), Form: text.Form{Masked: true, Zeroed: true},
				Under: func(string) bool { return true },
			}},
		},
		Names: weights.Names{Diffusers: diffusers(), Tables: []string{"positional_encoding", "register_tokens"}},
		Releases: []family.Release{{Name: "auraflow-0.3", Billions: 6.88, Steps: 50, Text: 256, Entries: 2, Config: Config{
			Hidden: 3072, Heads: 12, Double: 4, Single: 32, ContextDim: 2048, Channels: 4, PatchSize: 2, MLPHidden: 8192,
			Edge: 96,
		}}},
		Tiny: Config{
			Hidden: 144, Heads: 6, Double: 2, Single: 3, ContextDim: 48, Channels: 4, PatchSize: 2, MLPHidden: 256,
			Edge: 6,
		},
	}
}

// diffusers are the names of diffusers' AuraFlowTransformer2DModel.
func diffusers() []weights.Alias {
	const d, s, double, single = "joint_transformer_blocks.*.", "single_transformer_blocks.*.", "double_layers.*.",
		"single_layers.*."
	list := append(weights.MLP2("time_step_proj", "t_embedder.mlp.0", "t_embedder.mlp.2"),
		weights.Alias{File: "norm_out.linear", Own: "modF.1", Swapped: true})
	add := func(file, target string, names map[string]string) {
		for theirs, ours := range names {
			list = append(list, weights.Alias{File: file + theirs, Own: target + ours})
		}
	}
	add("", "", map[string]string{
		"pos_embed.pos_embed": "positional_encoding", "pos_embed.proj": "init_x_linear",
		"context_embedder": "cond_seq_linear", "proj_out": "final_linear",
	})
	queries := map[string]string{"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o"}
	add(s+"attn.", single+"attn.w1", queries)
	add(d+"attn.", double+"attn.w2", queries)
	add(d+"attn.", double+"attn.w1", map[string]string{
		"add_q_proj": "q", "add_k_proj": "k", "add_v_proj": "v", "to_add_out": "o",
	})
	add(s, single, map[string]string{"norm1.linear": "modCX.1"})
	add(d, double, map[string]string{"norm1.linear": "modX.1", "norm1_context.linear": "modC.1"})
	for file, target := range map[string]string{
		s + "ff.": single + "mlp.", d + "ff.": double + "mlpX.", d + "ff_context.": double + "mlpC.",
	} {
		add(file, target, map[string]string{"linear_1": "c_fc1", "linear_2": "c_fc2", "out_projection": "c_proj"})
	}
	return list
}

func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "auraflow", Width: c.Hidden, Heads: c.Heads, PatchSize: c.PatchSize, Channels: c.Channels,
		ContextDim: c.ContextDim, Registers: registers,
		Blocks: append(dit.Blocks(c.Double, dit.BlockSpec{Kind: dit.Double}),
			dit.Blocks(c.Single, dit.BlockSpec{Kind: dit.Single})...),
	}
	tags := family.Tags{
		Dims:   map[string]int{"F": c.MLPHidden, "N": c.Edge * c.Edge, "R": registers},
		Blocks: map[string]int{"double_layers": 0, "single_layers": c.Double},
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.SDXL(), Sampling: family.Sampling{Line: family.FlowLine, Shift: 1.73, Multiplier: 1},
	}, tags, func() *net {
		return &net{Double: make([]double, c.Double), Single: make([]single, c.Single)}
	}, func(l family.Loaded[net]) dit.Model { return &Model{l.Between(l.Net.Patch, nil, 0, 0), c} })
}
