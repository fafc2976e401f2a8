package hunyuan

import (
	"patchbay/engine"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, D head dim, C channels, p patch
// size, T and U columns of the BERT and mT5 states, W mT5 MLP width, O pooler output, X input of the extra embedder.
type net struct {
	Patch   *engine.Weight      `weight:"x_embedder.proj" shape:"E,C,p,p" use:"embed"`
	Time    layers.TimeEmbedder `weight:"t_embedder.mlp"`
	T5      t5Projection        `weight:"mlp_t5"`
	Padding engine.Tensor       `weight:"text_embedding_padding" shape:"333,T"` // 77 for BERT, then 256 for mT5
	Pooler  pooler              `weight:"pooler"`
	Style   *style              `weight:"style_embedder"` // nil: 1.2
	Extra   extraEmbedder       `weight:"extra_embedder"`
	Blocks  []block             `weight:"blocks"`
	Final   final               `weight:"final_layer" use:"head"`
}

// t5Projection brings mT5 states to the width of BERT's.
type t5Projection struct {
	In  *engine.Weight `weight:"0" shape:"W,U"`
	Out *engine.Weight `weight:"2" shape:"T,W"`
}

// pooler attends from the mean mT5 state to all states.
type pooler struct {
	Pos   engine.Tensor  `weight:"positional_embedding" shape:"257,U"`
	Query *engine.Weight `weight:"q_proj" shape:"U,U"`
	Key   *engine.Weight `weight:"k_proj" shape:"U,U"`
	Value *engine.Weight `weight:"v_proj" shape:"U,U"`
	Out   *engine.Weight `weight:"c_proj" shape:"O,U"`
}

type style struct {
	Table engine.Tensor `weight:"weight" shape:"1,E"`
}

// extraEmbedder turns pooled text, sizes and style into a vector of width E.
type extraEmbedder struct {
	In  *engine.Weight `weight:"0" shape:"4E,X"`
	Out *engine.Weight `weight:"2" shape:"E,4E"`
}

// block attends to the image, then to the text. Shift is the only modulation.
type block struct {
	Skip  *skip              `weight:""` // nil: the block has no skip input
	Norm1 shifted            `weight:"norm1"`
	Shift *engine.Weight     `weight:"default_modulation.1" shape:"E,E"`
	Attn  self               `weight:"attn1"`
	Norm3 norm               `weight:"norm3"`
	Cross cross              `weight:"attn2"`
	Norm2 norm               `weight:"norm2"`
	MLP   layers.FeedForward `weight:"mlp"`
}

// skip combines a block's input with the result of an earlier block.
type skip struct {
	Weight engine.Tensor  `weight:"skip_norm.weight" shape:"2E"`
	Bias   engine.Tensor  `weight:"skip_norm.bias" shape:"2E"`
	Linear *engine.Weight `weight:"skip_linear" shape:"E,2E"`
}

// norm is an affine LayerNorm.
type norm struct {
	Weight engine.Tensor `weight:"weight" shape:"E"`
	Bias   engine.Tensor `weight:"bias" shape:"E"`
}

// shifted is an affine LayerNorm whose result is shifted by the timestep: AdaLN with scale weight-1 and shift bias +
// timestep.
type shifted struct {
	Scale engine.Tensor `weight:"weight,minus1" shape:"E"`
	Bias  engine.Tensor `weight:"bias" shape:"E"`
}

// headNorm is the LayerNorm of queries and keys over the head dim.
type headNorm struct {
	QueryWeight engine.Tensor `weight:"q_norm.weight" shape:"D"`
	QueryBias   engine.Tensor `weight:"q_norm.bias" shape:"D"`
	KeyWeight   engine.Tensor `weight:"k_norm.weight" shape:"D"`
	KeyBias     engine.Tensor `weight:"k_norm.bias" shape:"D"`
}

type self struct {
	QKV  *engine.Weight `weight:"Wqkv" shape:"3E,E" split:"rows 3E"`
	Norm headNorm       `weight:""`
	Proj *engine.Weight `weight:"out_proj" shape:"E,E" split:"cols E"`
}

type cross struct {
	Query *engine.Weight `weight:"q_proj" shape:"E,E" split:"rows E"`
	KV    *engine.Weight `weight:"kv_proj" shape:"2E,T" split:"rows 2E"`
	Norm  headNorm       `weight:""`
	Proj  *engine.Weight `weight:"out_proj" shape:"E,E" split:"cols E"`
}

// final is the last layer. Mod gives shift, scale.
type final struct {
	Mod    *engine.Weight `weight:"adaLN_modulation.1" shape:"2E,E"`
	Linear *engine.Weight `weight:"linear,perm=patch" shape:"2C*p*p,E"`
}

// net returns the empty structs for c.
func (c Config) net() *net {
	n := &net{Style: family.NewIf[style](c.StyleCond), Blocks: make([]block, c.Depth)}
	for i := range n.Blocks {
		n.Blocks[i].Skip = family.NewIf[skip](c.skip(i) >= 0)
	}
	return n
}

// extra returns the number of inputs of the extra embedder.
func (c Config) extra() int {
	n := c.PoolDim
	if c.SizeCond {
		n += sizeValues * features
	}
	if c.StyleCond {
		n += c.Hidden
	}
	return n
}
