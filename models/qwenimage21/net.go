package qwenimage21

import "patchbay/engine"

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, D head dim, C channels, T columns
// of the context.
type net struct {
	ImageIn  *engine.Weight `weight:"img_in,nobias" shape:"E,C" use:"embed"`
	TextNorm engine.Tensor  `weight:"txt_in.text_norm.weight,plus1" shape:"T" use:"embed"`
	TextIn   *engine.Weight `weight:"txt_in.in_layer,nobias" shape:"E,T" use:"embed"`
	TextOut  *engine.Weight `weight:"txt_in.out_layer,nobias" shape:"E,E" use:"embed"`
	TimeIn   *engine.Weight `weight:"time_text_embed.timestep_embedder.linear_1,nobias" shape:"E,256"`
	TimeOut  *engine.Weight `weight:"time_text_embed.timestep_embedder.linear_2,nobias" shape:"E,E"`
	Mod      *engine.Weight `weight:"modulation.1,nobias" shape:"4E,E"` // scale, gate of the attention, then of the MLP
	Blocks   []block        `weight:"transformer_blocks"`
	FinalMod *engine.Weight `weight:"norm_out.linear,nobias" shape:"E,E" use:"head"` // scale
	Out      *engine.Weight `weight:"proj_out,nobias" shape:"C,E" use:"head"`
}

type block struct {
	Q      *engine.Weight `weight:"attn.to_q,nobias" shape:"E,E" split:"rows E"`
	K      *engine.Weight `weight:"attn.to_k,nobias" shape:"E,E" split:"rows E"`
	V      *engine.Weight `weight:"attn.to_v,nobias" shape:"E,E" split:"rows E"`
	Query  engine.Tensor  `weight:"attn.norm_q.weight" shape:"D"`
	Key    engine.Tensor  `weight:"attn.norm_k.weight" shape:"D"`
	Out    *engine.Weight `weight:"attn.to_out.0,nobias" shape:"E,E" split:"cols E"`
	GateUp *engine.Weight `weight:"img_mlp.gate_up,nobias" shape:"2F,E" split:"rows 2F"`
	Down   *engine.Weight `weight:"img_mlp.out,nobias" shape:"E,F" split:"cols F"`
}
