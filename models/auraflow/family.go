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
			Types: []string{"auraflow"}, // ComfyUI has none: the encoder says which it is
			Encoders: []family.Encoder{{
				Kind: "pile_t5xl", Layout: tokenizer.PileT5("pile_t5xl"), Form: text.Form{Masked: true, Zeroed: true},
				Under: func(string) bool { return true },
			}},
		},
		Names: weights.Names{Diffusers: diffusers(), Tables: []string{"positional_encoding", "register_tokens"}},
		Releases: []family.Release{{Name: "auraflow-0.3", Steps: 50, Text: 256, Entries: 2, Config: Config{
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
	list := []weights.Alias{
		{File: "pos_embed.pos_embed", Own: "positional_encoding"},
		{File: "pos_embed.proj", Own: "init_x_linear"},
		{File: "context_embedder", Own: "cond_seq_linear"},
		{File: "proj_out", Own: "final_linear"},
		{File: "norm_out.linear", Own: "modF.1", Swapped: true},
	}
	list = append(list, weights.MLP2("time_step_proj", "t_embedder.mlp.0", "t_embedder.mlp.2")...)
	for own, theirs := range map[string]string{
		"double_layers.*.": "joint_transformer_blocks.*.", "single_layers.*.": "single_transformer_blocks.*.",
	} {
		mlps, parts := map[string]string{"mlp": "ff"}, map[string]string{
			"attn.w1q": "attn.to_q", "attn.w1k": "attn.to_k", "attn.w1v": "attn.to_v", "attn.w1o": "attn.to_out.0",
			"modCX.1": "norm1.linear",
		}
		if own == "double_layers.*." {
			mlps, parts = map[string]string{"mlpX": "ff", "mlpC": "ff_context"}, map[string]string{
				"attn.w1q": "attn.add_q_proj", "attn.w1k": "attn.add_k_proj", "attn.w1v": "attn.add_v_proj",
				"attn.w1o": "attn.to_add_out",
				"attn.w2q": "attn.to_q", "attn.w2k": "attn.to_k", "attn.w2v": "attn.to_v", "attn.w2o": "attn.to_out.0",
				"modX.1": "norm1.linear", "modC.1": "norm1_context.linear",
			}
		}
		for name, file := range mlps {
			parts[name+".c_fc1"], parts[name+".c_fc2"] = file+".linear_1", file+".linear_2"
			parts[name+".c_proj"] = file + ".out_projection"
		}
		for name, file := range parts {
			list = append(list, weights.Alias{File: theirs + file, Own: own + name})
		}
	}
	return list
}

// Describe describes the model.
func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "auraflow", Width: c.Hidden, Heads: c.Heads, PatchSize: c.PatchSize, Channels: c.Channels,
		ContextDim: c.ContextDim, Registers: registers,
		Blocks: append(dit.Blocks(c.Double, dit.BlockSpec{Kind: dit.Double, Gated: true, Apart: true}),
			dit.Blocks(c.Single, dit.BlockSpec{Kind: dit.Single, Gated: true, Apart: true})...),
	}
	tags := family.Tags{
		Dims:   map[string]int{"F": c.MLPHidden, "N": c.Edge * c.Edge, "R": registers},
		Blocks: map[string]int{"double_layers": 0, "single_layers": c.Double},
	}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.SDXL(), Sampling: family.Sampling{Line: family.FlowLine, Shift: 1.73, Multiplier: 1},
	}, tags, func() *net {
		return &net{Double: make([]double, c.Double), Single: make([]single, c.Single)}
	}, func(l family.Loaded[net]) dit.Model { return &Model{l, c} })
}
