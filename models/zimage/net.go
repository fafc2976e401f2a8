package zimage

import "patchbay/engine"

// net names the weights of the whole model. The text's own blocks run once per prompt, when it is embedded.
type net struct {
	Patch   *engine.Weight `weight:"x_embedder" shape:"E,C*p*p" use:"embed"`
	Pads    *pads          `weight:"" use:"embed"` // nil: the model does not pad
	Caption caption        `weight:"cap_embedder" use:"embed"`
	Text    []textBlock    `weight:"context_refiner" use:"embed"`
	Time    timeEmbedder   `weight:"t_embedder.mlp"`
	Image   []modulated    `weight:"noise_refiner"`
	Layers  []modulated    `weight:"layers"`
	Final   final          `weight:"final_layer" use:"head"`
}

// pads are the learned tokens that pad image and text.
type pads struct {
	Image engine.Tensor `weight:"x_pad_token" shape:"1,E"`
	Text  engine.Tensor `weight:"cap_pad_token" shape:"1,E"`
}

type caption struct {
	Norm   engine.Tensor  `weight:"0.weight" shape:"T"`
	Linear *engine.Weight `weight:"1" shape:"E,T"`
}

type timeEmbedder struct {
	In  *engine.Weight `weight:"0" shape:"W,256"`
	Out *engine.Weight `weight:"2" shape:"M,W"`
}

// modulated is a block with its modulations, in one of two forms.
type modulated struct {
	Plain  *plainMod  `weight:"adaLN_modulation"` // Z-Image
	Active *activeMod `weight:"adaLN_modulation"` // Lumina 2
	Block  block      `weight:""`
}

type plainMod struct {
	Linear *engine.Weight `weight:"0" shape:"4E,M"`
}

type activeMod struct {
	Linear *engine.Weight `weight:"1" shape:"4E,M"`
}

// mod returns the projection to the modulations.
func (m *modulated) mod() *engine.Weight {
	if m.Plain != nil {
		return m.Plain.Linear
	}
	return m.Active.Linear
}

type block struct {
	Norm1 engine.Tensor  `weight:"attention_norm1.weight" shape:"E"`
	QKV   *engine.Weight `weight:"attention.qkv,nobias" shape:"E+2K,E" split:"rows E+2K"`
	Query engine.Tensor  `weight:"attention.q_norm.weight" shape:"D"`
	Key   engine.Tensor  `weight:"attention.k_norm.weight" shape:"D"`
	Out   *engine.Weight `weight:"attention.out,nobias" shape:"E,E" split:"cols E"`
	Norm2 engine.Tensor  `weight:"attention_norm2.weight" shape:"E"`
	Norm3 engine.Tensor  `weight:"ffn_norm1.weight" shape:"E"`
	Gate  *engine.Weight `weight:"feed_forward.w1,nobias" shape:"F,E" split:"rows F"`
	Up    *engine.Weight `weight:"feed_forward.w3,nobias" shape:"F,E" split:"rows F"`
	Down  *engine.Weight `weight:"feed_forward.w2,nobias" shape:"E,F" split:"cols F"`
	Norm4 engine.Tensor  `weight:"ffn_norm2.weight" shape:"E"`
}

// textBlock is a block that every rank of a tensor group computes whole: a prompt goes through it only once.
type textBlock struct {
	Norm1 engine.Tensor  `weight:"attention_norm1.weight" shape:"E"`
	QKV   *engine.Weight `weight:"attention.qkv,nobias" shape:"E+2K,E"`
	Query engine.Tensor  `weight:"attention.q_norm.weight" shape:"D"`
	Key   engine.Tensor  `weight:"attention.k_norm.weight" shape:"D"`
	Out   *engine.Weight `weight:"attention.out,nobias" shape:"E,E"`
	Norm2 engine.Tensor  `weight:"attention_norm2.weight" shape:"E"`
	Norm3 engine.Tensor  `weight:"ffn_norm1.weight" shape:"E"`
	Gate  *engine.Weight `weight:"feed_forward.w1,nobias" shape:"F,E"`
	Up    *engine.Weight `weight:"feed_forward.w3,nobias" shape:"F,E"`
	Down  *engine.Weight `weight:"feed_forward.w2,nobias" shape:"E,F"`
	Norm4 engine.Tensor  `weight:"ffn_norm2.weight" shape:"E"`
}

type final struct {
	Mod    *engine.Weight `weight:"adaLN_modulation.1" shape:"E,M"`
	Linear *engine.Weight `weight:"linear,perm=patch" shape:"C*p*p,E"`
}
