package auraflow

import (
	"patchbay/engine"
	"patchbay/models/layers"
)

// net names the weights of the whole model. Sizes in the tags: N positions, R registers, F MLP width; the others are
// those of family.Tags.
type net struct {
	Patch     *engine.Weight      `weight:"init_x_linear" shape:"E,C*p*p" use:"embed"`
	Positions engine.Tensor       `weight:"positional_encoding" shape:"1,N,E" use:"embed"`
	Registers engine.Tensor       `weight:"register_tokens" shape:"1,R,E" use:"embed"`
	Text      *engine.Weight      `weight:"cond_seq_linear,nobias" shape:"E,T" use:"embed"`
	Time      layers.TimeEmbedder `weight:"t_embedder.mlp"`
	Double    []double            `weight:"double_layers"`
	Single    []single            `weight:"single_layers"`
	Mod       *engine.Weight      `weight:"modF.1,nobias" shape:"2E,E" use:"head"`
	Final     *engine.Weight      `weight:"final_linear,nobias,perm=patch" shape:"C*p*p,E" use:"head"`
}

type double struct {
	TextMod  *engine.Weight `weight:"modC.1,nobias" shape:"6E,E"`
	ImageMod *engine.Weight `weight:"modX.1,nobias" shape:"6E,E"`
	Text     attention      `weight:"attn"`
	Image    attention2     `weight:"attn"`
	TextMLP  mlp            `weight:"mlpC"`
	ImageMLP mlp            `weight:"mlpX"`
}

type single struct {
	Mod  *engine.Weight `weight:"modCX.1,nobias" shape:"6E,E"`
	Attn attention      `weight:"attn"`
	MLP  mlp            `weight:"mlp"`
}

type attention struct {
	Q   *engine.Weight `weight:"w1q,nobias" shape:"E,E" split:"rows E"`
	K   *engine.Weight `weight:"w1k,nobias" shape:"E,E" split:"rows E"`
	V   *engine.Weight `weight:"w1v,nobias" shape:"E,E" split:"rows E"`
	Out *engine.Weight `weight:"w1o,nobias" shape:"E,E" split:"cols E"`
}

// attention2 is the attention of the image.
type attention2 struct {
	Q   *engine.Weight `weight:"w2q,nobias" shape:"E,E" split:"rows E"`
	K   *engine.Weight `weight:"w2k,nobias" shape:"E,E" split:"rows E"`
	V   *engine.Weight `weight:"w2v,nobias" shape:"E,E" split:"rows E"`
	Out *engine.Weight `weight:"w2o,nobias" shape:"E,E" split:"cols E"`
}

type mlp struct {
	Gate *engine.Weight `weight:"c_fc1,nobias" shape:"F,E" split:"rows F"`
	Up   *engine.Weight `weight:"c_fc2,nobias" shape:"F,E" split:"rows F"`
	Down *engine.Weight `weight:"c_proj,nobias" shape:"E,F" split:"cols F"`
}
