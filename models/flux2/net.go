package flux2

import "patchbay/engine"

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, D head dim, C channels, T columns
// of the context.
type net struct {
	ImgIn     *engine.Weight `weight:"img_in,nobias" shape:"E,C" use:"embed"`
	TxtIn     *engine.Weight `weight:"txt_in,nobias" shape:"E,T" use:"embed"`
	Time      embedder       `weight:"time_in"`
	Guidance  *embedder      `weight:"guidance_in"` // nil: klein
	ImageMod  *engine.Weight `weight:"double_stream_modulation_img.lin,nobias" shape:"6E,E"`
	TextMod   *engine.Weight `weight:"double_stream_modulation_txt.lin,nobias" shape:"6E,E"`
	SingleMod *engine.Weight `weight:"single_stream_modulation.lin,nobias" shape:"3E,E"`
	Double    []double       `weight:"double_blocks"`
	Single    []single       `weight:"single_blocks"`
	FinalMod  *engine.Weight `weight:"final_layer.adaLN_modulation.1,nobias" shape:"2E,E" use:"head"` // shift, scale
	Out       *engine.Weight `weight:"final_layer.linear,nobias" shape:"C,E" use:"head"`
}

// embedder turns sinusoidal features into a vector of width E.
type embedder struct {
	In  *engine.Weight `weight:"in_layer,nobias" shape:"E,256"`
	Out *engine.Weight `weight:"out_layer,nobias" shape:"E,E"`
}

// double is a block with separate weights for image and text and joint attention.
type double struct {
	Img stream `weight:"img_"`
	Txt stream `weight:"txt_"`
}

// stream is one side of a double block. The MLP's first layer is stored fused.
type stream struct {
	QKV   *engine.Weight `weight:"attn.qkv,nobias" shape:"3E,E" split:"rows 3E"`
	Query engine.Tensor  `weight:"attn.norm.query_norm.scale,alt=attn.norm.query_norm.weight" shape:"D"`
	Key   engine.Tensor  `weight:"attn.norm.key_norm.scale,alt=attn.norm.key_norm.weight" shape:"D"`
	Proj  *engine.Weight `weight:"attn.proj,nobias" shape:"E,E" split:"cols E"`
	Gate  *engine.Weight `weight:"mlp.0,nobias" shape:"2F,E" rows:"0:F" split:"rows F"`
	Up    *engine.Weight `weight:"mlp.0,nobias" shape:"2F,E" rows:"F:2F" split:"rows F"`
	Down  *engine.Weight `weight:"mlp.2,nobias" shape:"E,F" split:"cols F"`
}

// single is a block of one stream. linear1 is stored fused: queries, keys, values, then the MLP's two first layers;
// linear2 reads the attention result and the MLP's hidden units side by side.
type single struct {
	QKV   *engine.Weight `weight:"linear1,nobias" shape:"3E+2F,E" rows:"0:3E" split:"rows 3E"`
	Gate  *engine.Weight `weight:"linear1,nobias" shape:"3E+2F,E" rows:"3E:3E+F" split:"rows F"`
	Up    *engine.Weight `weight:"linear1,nobias" shape:"3E+2F,E" rows:"3E+F:3E+2F" split:"rows F"`
	Query engine.Tensor  `weight:"norm.query_norm.scale,alt=norm.query_norm.weight" shape:"D"`
	Key   engine.Tensor  `weight:"norm.key_norm.scale,alt=norm.key_norm.weight" shape:"D"`
	Down  *engine.Weight `weight:"linear2,nobias" shape:"E,E+F" split:"cols E+F"`
}
