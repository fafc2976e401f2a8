package flux3

import "patchbay/engine"

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, D head dim, C channels, T columns
// of the context. Modulations are (shift, scale, gate).
type net struct {
	ImageIn    *engine.Weight `weight:"emb_in.image,nobias" shape:"E,C" use:"embed"`
	CondIn     *engine.Weight `weight:"emb_in.image_cond,nobias" shape:"E,C" use:"embed"`
	TextIn     *engine.Weight `weight:"txt_in,nobias" shape:"E,T" use:"embed"`
	Time       embedder       `weight:"time_in"`
	Next       *embedder      `weight:"ref_time_in"` // nil: base
	EarlyImage *engine.Weight `weight:"early_stream_modulations.image.lin,nobias" shape:"3E,E"`
	EarlyCond  *engine.Weight `weight:"early_stream_modulations.image_cond.lin,nobias" shape:"3E,E" use:"embed"`
	EarlyText  *engine.Weight `weight:"early_stream_modulations.txt.lin,nobias" shape:"3E,E" use:"embed"`
	JointImage *engine.Weight `weight:"single_stream_modulations.image.lin,nobias" shape:"3E,E"`
	JointCond  *engine.Weight `weight:"single_stream_modulations.image_cond.lin,nobias" shape:"3E,E"`
	JointText  *engine.Weight `weight:"single_stream_modulations.txt.lin,nobias" shape:"3E,E"`
	Text       []whole        `weight:"txt_mode_blocks" use:"embed"`
	Cond       []whole        `weight:"content_mode_blocks.image_cond" use:"embed"`
	Image      []block        `weight:"content_mode_blocks.image"`
	Joint      []block        `weight:"single_blocks"`
	FinalMod   *engine.Weight `weight:"final_layer.image.adaLN_modulation.1,nobias" shape:"2E,E" use:"head"`
	Out        *engine.Weight `weight:"final_layer.image.linear,nobias" shape:"C,E" use:"head"`
}

// embedder turns sinusoidal features into a vector of width E.
type embedder struct {
	In  *engine.Weight `weight:"in_layer,nobias" shape:"E,256"`
	Out *engine.Weight `weight:"out_layer,nobias" shape:"E,E"`
}

type block struct {
	Q     *engine.Weight `weight:"q_proj,nobias" shape:"E,E" split:"rows E"`
	K     *engine.Weight `weight:"k_proj,nobias" shape:"E,E" split:"rows E"`
	V     *engine.Weight `weight:"v_proj,nobias" shape:"E,E" split:"rows E"`
	Query engine.Tensor  `weight:"norm.query_norm.scale" shape:"D"`
	Key   engine.Tensor  `weight:"norm.key_norm.scale" shape:"D"`
	Out   *engine.Weight `weight:"attn_out,nobias" shape:"E,E" split:"cols E"`
	Gate  *engine.Weight `weight:"mlp_in,nobias" shape:"2F,E" rows:"0:F" split:"rows F"`
	Up    *engine.Weight `weight:"mlp_in,nobias" shape:"2F,E" rows:"F:2F" split:"rows F"`
	Down  *engine.Weight `weight:"mlp_out,nobias" shape:"E,F" split:"cols F"`
}

// whole is a block of text or references, which every rank of a tensor group computes whole: they do not depend on the
// timestep.
type whole struct {
	Q     *engine.Weight `weight:"q_proj,nobias" shape:"E,E"`
	K     *engine.Weight `weight:"k_proj,nobias" shape:"E,E"`
	V     *engine.Weight `weight:"v_proj,nobias" shape:"E,E"`
	Query engine.Tensor  `weight:"norm.query_norm.scale" shape:"D"`
	Key   engine.Tensor  `weight:"norm.key_norm.scale" shape:"D"`
	Out   *engine.Weight `weight:"attn_out,nobias" shape:"E,E"`
	Gate  *engine.Weight `weight:"mlp_in,nobias" shape:"2F,E" rows:"0:F"`
	Up    *engine.Weight `weight:"mlp_in,nobias" shape:"2F,E" rows:"F:2F"`
	Down  *engine.Weight `weight:"mlp_out,nobias" shape:"E,F"`
}
