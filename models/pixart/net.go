package pixart

import (
	"patchbay/engine"
	"patchbay/models/layers"
)

// net names the weights of the whole model. Sizes in the tags: E width, F MLP width, R = E/3, C channels, p patch size,
// T columns of the context.
type net struct {
	Patch   *engine.Weight      `weight:"x_embedder.proj" shape:"E,C,p,p" use:"embed"`
	Time    layers.TimeEmbedder `weight:"t_embedder.mlp"`
	Size    *sizeEmbedder       `weight:"csize_embedder"` // nil: sigma
	Ratio   *sizeEmbedder       `weight:"ar_embedder"`    // nil: sigma
	TBlock  *engine.Weight      `weight:"t_block.1" shape:"6E,E"`
	Caption caption             `weight:"y_embedder.y_proj"`
	Blocks  []block             `weight:"blocks"`
	Final   final               `weight:"final_layer" use:"head"`
}

// sizeEmbedder turns the features of one number into a third of the size vector.
type sizeEmbedder struct {
	In  *engine.Weight `weight:"mlp.0" shape:"R,256"`
	Out *engine.Weight `weight:"mlp.2" shape:"R,R"`
}

type caption struct {
	Up   *engine.Weight `weight:"fc1" shape:"E,T"`
	Down *engine.Weight `weight:"fc2" shape:"E,E"`
}

// block attends to the image, then to the text. Table is added to the shared modulation: shift, scale, gate of the
// attention, then of the MLP.
type block struct {
	Table engine.Tensor      `weight:"scale_shift_table" shape:"6,E"`
	Attn  self               `weight:"attn"`
	Cross cross              `weight:"cross_attn"`
	MLP   layers.FeedForward `weight:"mlp"`
}

type self struct {
	QKV  *engine.Weight `weight:"qkv" shape:"3E,E" split:"rows 3E"`
	Proj *engine.Weight `weight:"proj" shape:"E,E" split:"cols E"`
}

type cross struct {
	Query *engine.Weight `weight:"q_linear" shape:"E,E" split:"rows E"`
	KV    *engine.Weight `weight:"kv_linear" shape:"2E,E" split:"rows 2E"`
	Proj  *engine.Weight `weight:"proj" shape:"E,E" split:"cols E"`
}

// final is the last layer. Table is added to the timestep embedding: shift, scale.
type final struct {
	Table  engine.Tensor  `weight:"scale_shift_table" shape:"2,E"`
	Linear *engine.Weight `weight:"linear,perm=patch" shape:"2C*p*p,E"`
}
