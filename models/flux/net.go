package flux

import (
	"patchbay/engine"
	"patchbay/models/family"
)

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, D head dim, C channels, p patch
// size, I columns of a token with the concatenated channels, T and V columns of context and pooled vector.
type net struct {
	ImgIn    *engine.Weight  `weight:"img_in" shape:"E,I" use:"embed"`
	TxtIn    *engine.Weight  `weight:"txt_in" shape:"E,T" use:"embed"`
	Time     *timeEmbedder   `weight:"time_in"`                  // nil: Chroma
	Vector   *vectorEmbedder `weight:"vector_in"`                // nil: Chroma
	Guidance *timeEmbedder   `weight:"guidance_in"`              // nil: schnell, Chroma
	All      *approximator   `weight:"distilled_guidance_layer"` // nil: FLUX
	Double   []double        `weight:"double_blocks"`
	Single   []single        `weight:"single_blocks"`
	Final    final           `weight:"final_layer" use:"head"`
}

// timeEmbedder turns sinusoidal features into a vector of width E.
type timeEmbedder struct {
	In  *engine.Weight `weight:"in_layer" shape:"E,256"`
	Out *engine.Weight `weight:"out_layer" shape:"E,E"`
}

// vectorEmbedder turns the pooled text vector into one of width E.
type vectorEmbedder struct {
	In  *engine.Weight `weight:"in_layer" shape:"E,V"`
	Out *engine.Weight `weight:"out_layer" shape:"E,E"`
}

// double is a block with separate weights for image and text and joint attention.
type double struct {
	Img stream `weight:"img_"`
	Txt stream `weight:"txt_"`
}

// stream is one side of a double block. Mod gives shift, scale, gate of the attention, then of the MLP.
type stream struct {
	Mod   *doubleMod     `weight:"mod"` // nil, as in the structs below: Chroma
	QKV   *engine.Weight `weight:"attn.qkv" shape:"3E,E" split:"rows 3E"`
	Query engine.Tensor  `weight:"attn.norm.query_norm.scale,alt=attn.norm.query_norm.weight" shape:"D"`
	Key   engine.Tensor  `weight:"attn.norm.key_norm.scale,alt=attn.norm.key_norm.weight" shape:"D"`
	Proj  *engine.Weight `weight:"attn.proj" shape:"E,E" split:"cols E"`
	Up    *engine.Weight `weight:"mlp.0" shape:"F,E" split:"rows F"`
	Down  *engine.Weight `weight:"mlp.2" shape:"E,F" split:"cols F"`
}

// single is a block of one stream. linear1 is stored fused: queries, keys, values, then the MLP's first layer; linear2
// reads the attention result and the MLP's hidden units side by side. Mod gives shift, scale, gate.
type single struct {
	Mod   *singleMod     `weight:"modulation"`
	QKV   *engine.Weight `weight:"linear1" shape:"3E+F,E" rows:"0:3E" split:"rows 3E"`
	Up    *engine.Weight `weight:"linear1" shape:"3E+F,E" rows:"3E:3E+F" split:"rows F"`
	Query engine.Tensor  `weight:"norm.query_norm.scale,alt=norm.query_norm.weight" shape:"D"`
	Key   engine.Tensor  `weight:"norm.key_norm.scale,alt=norm.key_norm.weight" shape:"D"`
	Down  *engine.Weight `weight:"linear2" shape:"E,E+F" split:"cols E+F"`
}

// final is the last layer. Mod gives shift, scale.
type final struct {
	Mod    *finalMod      `weight:"adaLN_modulation"`
	Linear *engine.Weight `weight:"linear" shape:"C*p*p,E"`
}

type doubleMod struct {
	Linear *engine.Weight `weight:"lin" shape:"6E,E"`
}

type singleMod struct {
	Linear *engine.Weight `weight:"lin" shape:"3E,E"`
}

type finalMod struct {
	Linear *engine.Weight `weight:"1" shape:"2E,E"`
}

// net returns the empty structs for c.
func (c Config) net() *net {
	n := &net{Double: make([]double, c.Depth), Single: make([]single, c.DepthSingle)}
	if c.Distilled > 0 {
		n.All = &approximator{Layers: make([]vectorLayer, c.Layers), Norms: make([]vectorNorm, c.Layers)}
		return n
	}
	n.Time, n.Vector, n.Final.Mod = &timeEmbedder{}, &vectorEmbedder{}, &finalMod{}
	n.Guidance = family.NewIf[timeEmbedder](c.Guidance)
	for i := range n.Double {
		n.Double[i].Img.Mod, n.Double[i].Txt.Mod = &doubleMod{}, &doubleMod{}
	}
	for i := range n.Single {
		n.Single[i].Mod = &singleMod{}
	}
	return n
}
