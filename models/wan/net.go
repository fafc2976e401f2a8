package wan

import (
	"patchbay/engine"
	"patchbay/models/layers"
)

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, C channels of the latent, I those
// that are read, p patch size, T columns of the context, V columns and R rows of the picture's states.
type net struct {
	Patch   *engine.Weight      `weight:"patch_embedding" shape:"E,I,1,p,p" use:"embed"`
	Text    textEmbedder        `weight:"text_embedding"`
	Time    layers.TimeEmbedder `weight:"time_embedding"`
	TimeMod *engine.Weight      `weight:"time_projection.1" shape:"6E,E"`
	Vision  *vision             `weight:"img_emb"` // nil: none
	Blocks  []block             `weight:"blocks"`
	Head    head                `weight:"head" use:"head"`
}

type textEmbedder struct {
	In  *engine.Weight `weight:"0" shape:"E,T"`
	Out *engine.Weight `weight:"2" shape:"E,E"`
}

// vision embeds the states of a picture encoder.
type vision struct {
	Positions *positions     `weight:""` // nil: none
	NormIn    engine.Tensor  `weight:"proj.0.weight" shape:"V"`
	BiasIn    engine.Tensor  `weight:"proj.0.bias" shape:"V"`
	In        *engine.Weight `weight:"proj.1" shape:"V,V"`
	Out       *engine.Weight `weight:"proj.3" shape:"E,V"`
	NormOut   engine.Tensor  `weight:"proj.4.weight" shape:"E"`
	BiasOut   engine.Tensor  `weight:"proj.4.bias" shape:"E"`
}

type positions struct {
	Rows engine.Tensor `weight:"emb_pos" shape:"1,R,V"`
}

// block attends to the video, then to text and picture. Table is added to the shared modulation: shift, scale, gate of
// the attention, then of the MLP.
type block struct {
	Table     engine.Tensor  `weight:"modulation" shape:"1,6,E"`
	Self      attention      `weight:"self_attn"`
	CrossNorm engine.Tensor  `weight:"norm3.weight" shape:"E"`
	CrossBias engine.Tensor  `weight:"norm3.bias" shape:"E"`
	Cross     attention      `weight:"cross_attn"`
	Picture   *picture       `weight:"cross_attn"` // nil: none
	Up        *engine.Weight `weight:"ffn.0" shape:"F,E" split:"rows F"`
	Down      *engine.Weight `weight:"ffn.2" shape:"E,F" split:"cols F"`
}

type attention struct {
	Q     *engine.Weight `weight:"q" shape:"E,E" split:"rows E"`
	K     *engine.Weight `weight:"k" shape:"E,E" split:"rows E"`
	V     *engine.Weight `weight:"v" shape:"E,E" split:"rows E"`
	Query engine.Tensor  `weight:"norm_q.weight" shape:"E"`
	Key   engine.Tensor  `weight:"norm_k.weight" shape:"E"`
	Out   *engine.Weight `weight:"o" shape:"E,E" split:"cols E"`
}

// picture makes keys and values of the picture's states.
type picture struct {
	K   *engine.Weight `weight:"k_img" shape:"E,E" split:"rows E"`
	V   *engine.Weight `weight:"v_img" shape:"E,E" split:"rows E"`
	Key engine.Tensor  `weight:"norm_k_img.weight" shape:"E"`
}

// head is the last layer. Table is added to the embedding of the timestep: shift, scale.
type head struct {
	Table  engine.Tensor  `weight:"modulation" shape:"1,2,E"`
	Linear *engine.Weight `weight:"head,perm=patch" shape:"C*p*p,E"`
}
