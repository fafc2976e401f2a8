package qwenimage

import "patchbay/engine"

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, D head dim, C channels, p patch
// size, T columns of the context.
type net struct {
	ImgIn    *engine.Weight `weight:"img_in" shape:"E,C*p*p" use:"embed"`
	TextNorm engine.Tensor  `weight:"txt_norm.weight" shape:"T" use:"embed"`
	TextIn   *engine.Weight `weight:"txt_in" shape:"E,T" use:"embed"`
	Time     timeEmbedder   `weight:"time_text_embed.timestep_embedder"`
	Alpha    *alphaTable    `weight:"time_text_embed.addition_t_embedding"` // nil: not Layered
	Blocks   []joint        `weight:"transformer_blocks"`
	FinalMod *engine.Weight `weight:"norm_out.linear" shape:"2E,E" use:"head"` // scale, shift
	Out      *engine.Weight `weight:"proj_out" shape:"C*p*p,E" use:"head"`
}

// timeEmbedder turns sinusoidal features into a vector of width E.
type timeEmbedder struct {
	In  *engine.Weight `weight:"linear_1" shape:"E,256"`
	Out *engine.Weight `weight:"linear_2" shape:"E,E"`
}

// alphaTable has a vector for images without alpha and one for images with it. ComfyUI always adds the first.
type alphaTable struct {
	Rows engine.Tensor `weight:"weight" shape:"2,E"`
}

// joint is a block of two streams.
type joint struct {
	ImageMod *engine.Weight `weight:"img_mod.1" shape:"6E,E"` // shift, scale, gate of the attention, then of the MLP
	TextMod  *engine.Weight `weight:"txt_mod.1" shape:"6E,E"`
	Image    imageAttention `weight:"attn"`
	Text     textAttention  `weight:"attn"`
	ImageMLP mlp            `weight:"img_mlp"`
	TextMLP  mlp            `weight:"txt_mlp"`
}

type imageAttention struct {
	Q         *engine.Weight `weight:"to_q" shape:"E,E" split:"rows E"`
	K         *engine.Weight `weight:"to_k" shape:"E,E" split:"rows E"`
	V         *engine.Weight `weight:"to_v" shape:"E,E" split:"rows E"`
	QueryNorm engine.Tensor  `weight:"norm_q.weight" shape:"D"`
	KeyNorm   engine.Tensor  `weight:"norm_k.weight" shape:"D"`
	Out       *engine.Weight `weight:"to_out.0" shape:"E,E" split:"cols E"`
}

type textAttention struct {
	Q         *engine.Weight `weight:"add_q_proj" shape:"E,E" split:"rows E"`
	K         *engine.Weight `weight:"add_k_proj" shape:"E,E" split:"rows E"`
	V         *engine.Weight `weight:"add_v_proj" shape:"E,E" split:"rows E"`
	QueryNorm engine.Tensor  `weight:"norm_added_q.weight" shape:"D"`
	KeyNorm   engine.Tensor  `weight:"norm_added_k.weight" shape:"D"`
	Out       *engine.Weight `weight:"to_add_out" shape:"E,E" split:"cols E"`
}

type mlp struct {
	Up   *engine.Weight `weight:"net.0.proj" shape:"F,E" split:"rows F"`
	Down *engine.Weight `weight:"net.2" shape:"E,F" split:"cols F"`
}
