package krea2

import "patchbay/engine"

// net names the weights of the whole model. Sizes in the tags: E width, K width of keys, F MLP width, D head dim, C
// channels, p patch size, W width of the text, G of its MLPs, d of its heads, n taps.
type net struct {
	Patch     *engine.Weight `weight:"first" shape:"E,C*p*p" use:"embed"`
	Fusion    fusion         `weight:"txtfusion" use:"embed"`
	TextNorm  engine.Tensor  `weight:"txtmlp.0.scale,plus1" shape:"W" use:"embed"`
	TextIn    *engine.Weight `weight:"txtmlp.1" shape:"E,W" use:"embed"`
	TextOut   *engine.Weight `weight:"txtmlp.3" shape:"E,E" use:"embed"`
	TimeIn    *engine.Weight `weight:"tmlp.0" shape:"E,256"`
	TimeOut   *engine.Weight `weight:"tmlp.2" shape:"E,E"`
	TimeMod   *engine.Weight `weight:"tproj.1" shape:"6E,E"`
	Blocks    []block        `weight:"blocks"`
	FinalNorm engine.Tensor  `weight:"last.norm.scale,plus1" shape:"E" use:"head"`
	Table     engine.Tensor  `weight:"last.modulation.lin" shape:"2,E" use:"head"` // scale, shift
	Out       *engine.Weight `weight:"last.linear" shape:"C*p*p,E" use:"head"`
}

// block is one block of text and image.
type block struct {
	Table engine.Tensor `weight:"mod.lin" shape:"6E"` // scale, shift, gate of the attention, then of the MLP
	Norm1 engine.Tensor `weight:"prenorm.scale,plus1" shape:"E"`
	Norm2 engine.Tensor `weight:"postnorm.scale,plus1" shape:"E"`
	Attn  attention     `weight:"attn"`
	MLP   mlp           `weight:"mlp"`
}

type attention struct {
	Q     *engine.Weight `weight:"wq,nobias" shape:"E,E" split:"rows E"`
	K     *engine.Weight `weight:"wk,nobias" shape:"K,E" split:"rows K"`
	V     *engine.Weight `weight:"wv,nobias" shape:"K,E" split:"rows K"`
	Gate  *engine.Weight `weight:"gate,nobias" shape:"E,E" split:"rows E"`
	Query engine.Tensor  `weight:"qknorm.qnorm.scale,plus1" shape:"D"`
	Key   engine.Tensor  `weight:"qknorm.knorm.scale,plus1" shape:"D"`
	Out   *engine.Weight `weight:"wo,nobias" shape:"E,E" split:"cols E"`
}

type mlp struct {
	Gate *engine.Weight `weight:"gate,nobias" shape:"F,E" split:"rows F"`
	Up   *engine.Weight `weight:"up,nobias" shape:"F,E" split:"rows F"`
	Down *engine.Weight `weight:"down,nobias" shape:"E,F" split:"cols F"`
}

// fusion merges the taps of a text. Every rank of a tensor group holds it whole: a prompt goes through it only once.
type fusion struct {
	Taps      []textBlock    `weight:"layerwise_blocks"`
	Projector *engine.Weight `weight:"projector,nobias" shape:"1,n"`
	Tokens    []textBlock    `weight:"refiner_blocks"`
}

type textBlock struct {
	Norm1 engine.Tensor  `weight:"prenorm.scale,plus1" shape:"W"`
	Q     *engine.Weight `weight:"attn.wq,nobias" shape:"W,W"`
	K     *engine.Weight `weight:"attn.wk,nobias" shape:"W,W"`
	V     *engine.Weight `weight:"attn.wv,nobias" shape:"W,W"`
	Gate  *engine.Weight `weight:"attn.gate,nobias" shape:"W,W"`
	Query engine.Tensor  `weight:"attn.qknorm.qnorm.scale,plus1" shape:"d"`
	Key   engine.Tensor  `weight:"attn.qknorm.knorm.scale,plus1" shape:"d"`
	Out   *engine.Weight `weight:"attn.wo,nobias" shape:"W,W"`
	Norm2 engine.Tensor  `weight:"postnorm.scale,plus1" shape:"W"`
	Side  *engine.Weight `weight:"mlp.gate,nobias" shape:"G,W"`
	Up    *engine.Weight `weight:"mlp.up,nobias" shape:"G,W"`
	Down  *engine.Weight `weight:"mlp.down,nobias" shape:"W,G"`
}
