package sd3

import (
	"patchbay/engine"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, D head dim, C channels, p patch
// size, T and V columns of context and pooled vector, G side of the position table.
type net struct {
	Patch   *engine.Weight      `weight:"x_embedder.proj" shape:"E,C,p,p" use:"embed"`
	Pos     engine.Tensor       `weight:"pos_embed" shape:"1,G*G,E" use:"embed"`
	Context *engine.Weight      `weight:"context_embedder" shape:"E,T" use:"embed"`
	Time    layers.TimeEmbedder `weight:"t_embedder.mlp"`
	Vector  vectorEmbedder      `weight:"y_embedder"`
	Blocks  []joint             `weight:"joint_blocks"`
	Final   final               `weight:"final_layer" use:"head"`
}

// vectorEmbedder turns the pooled text vector into one of width E.
type vectorEmbedder struct {
	In  *engine.Weight `weight:"mlp.0" shape:"E,V"`
	Out *engine.Weight `weight:"mlp.2" shape:"E,E"`
}

// joint is a block of two streams. Exactly one of Text and LastText is set, exactly one of Image and DualImage.
type joint struct {
	Text      *stream     `weight:"context_block"`
	LastText  *lastText   `weight:"context_block"`
	Image     *stream     `weight:"x_block"`
	DualImage *dualStream `weight:"x_block"`
}

// view returns the block in one form for plain and dual, middle and last blocks. What the text side of the last block
// lacks is nil. second is the attention over image tokens alone; nil: this block has none.
func (j *joint) view() (text, image *stream, second *attention) {
	text, image = j.Text, j.Image
	if l := j.LastText; l != nil {
		text = &stream{Mod: l.Mod, Attn: attention{QKV: l.QKV, Norm: l.Norm}}
	}
	if d := j.DualImage; d != nil {
		image, second = &stream{Mod: d.Mod, Attn: d.Attn, MLP: d.MLP}, &d.Attn2
	}
	return text, image, second
}

// stream is one side of a block. Mod gives shift, scale, gate of the attention, then of the MLP.
type stream struct {
	Mod  *engine.Weight     `weight:"adaLN_modulation.1" shape:"6E,E"`
	Attn attention          `weight:"attn"`
	MLP  layers.FeedForward `weight:"mlp"`
}

// dualStream is an image side that attends twice. Mod continues with shift, scale, gate of the second attention.
type dualStream struct {
	Mod   *engine.Weight     `weight:"adaLN_modulation.1" shape:"9E,E"`
	Attn  attention          `weight:"attn"`
	Attn2 attention          `weight:"attn2"`
	MLP   layers.FeedForward `weight:"mlp"`
}

// lastText is the text side of the last block, which provides queries, keys and values and nothing else. Mod gives
// shift, scale.
type lastText struct {
	Mod  *engine.Weight `weight:"adaLN_modulation.1" shape:"2E,E"`
	QKV  *engine.Weight `weight:"attn.qkv" shape:"3E,E" split:"rows 3E"`
	Norm *qkNorm        `weight:"attn"`
}

type attention struct {
	QKV  *engine.Weight `weight:"qkv" shape:"3E,E" split:"rows 3E"`
	Norm *qkNorm        `weight:""` // nil: queries and keys are not normalised
	Proj *engine.Weight `weight:"proj" shape:"E,E" split:"cols E"`
}

type qkNorm struct {
	Query engine.Tensor `weight:"ln_q.weight" shape:"D"`
	Key   engine.Tensor `weight:"ln_k.weight" shape:"D"`
}

// final is the last layer. Mod gives shift, scale.
type final struct {
	Mod    *engine.Weight `weight:"adaLN_modulation.1" shape:"2E,E"`
	Linear *engine.Weight `weight:"linear,perm=patch" shape:"C*p*p,E"`
}

// net returns the empty structs for c.
func (c Config) net() *net {
	attend := func() attention { return attention{Norm: family.NewIf[qkNorm](c.QKNorm)} }
	n := &net{Blocks: make([]joint, c.Blocks)}
	for i := range n.Blocks {
		b := &n.Blocks[i]
		if i == c.Blocks-1 {
			b.LastText = &lastText{Norm: attend().Norm}
		} else {
			b.Text = &stream{Attn: attend()}
		}
		if c.dual(i) {
			b.DualImage = &dualStream{Attn: attend(), Attn2: attend()}
		} else {
			b.Image = &stream{Attn: attend()}
		}
	}
	return n
}
