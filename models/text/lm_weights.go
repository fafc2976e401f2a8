package text

import "patchbay/engine"

// lmWeights are those of a language model, or of one part of it.
type lmWeights struct {
	Token engine.Tensor `weight:"model.embed_tokens.weight,keep" shape:"V,E" use:"embed"` // only part 0 has it
	Layer []*lmLayer    `weight:"model.layers"`
	Four  []*layer4     `weight:"model.layers"` // Layer of Gemma 4
	// Inputs are those of every layer; nil: there are none.
	Inputs *inputs4 `weight:"model"`
	Final  *lmNorm  `weight:"model.norm"` // nil: not in the file, or its output is not needed
	Last   *lmPlus1 `weight:"model.norm"` // Final of Gemma 3 and Qwen3.5
}

type lmNorm struct {
	Weight engine.Tensor `weight:"weight" shape:"E"`
}

// lmLayer is one decoder layer.
type lmLayer struct {
	Norms *lmNorms       `weight:""` // exactly one of Norms, Plus1 and Gemma is set
	Plus1 *lmNormsPlus1  `weight:""`
	Gemma *lmSandwich    `weight:""`
	Full  *lmAttention   `weight:"self_attn"` // exactly one of Full and Delta is set
	Delta *lmDelta       `weight:"linear_attn"`
	Gate  *engine.Weight `weight:"mlp.gate_proj,nobias" shape:"F,E" split:"rows F"`
	Up    *engine.Weight `weight:"mlp.up_proj,nobias" shape:"F,E" split:"rows F"`
	Down  *engine.Weight `weight:"mlp.down_proj,nobias" shape:"E,F" split:"cols F"`
}

// lmAttention attends to all tokens before. Files store the two halves of a rotary pair half of the rotated rows apart;
// the row orders put them next to each other, as engine.RoPE expects. Q has the rows of the output's gates behind those
// of the queries if the model has gates.
type lmAttention struct {
	Q     *engine.Weight `weight:"q_proj,optbias,perm=q" shape:"G,E" split:"rows G"`
	K     *engine.Weight `weight:"k_proj,optbias,perm=k" shape:"K,E" split:"rows K"`
	V     *engine.Weight `weight:"v_proj,optbias" shape:"K,E" split:"rows K"`
	Heads *lmHeadNorm    `weight:""` // nil: queries and keys are not normalized, or Plus1 has the norms
	Plus1 *lmHeadPlus1   `weight:""` // Heads of Gemma 3 and Qwen3.5
	O     *engine.Weight `weight:"o_proj,nobias" shape:"E,Q" split:"cols Q"`
}

// lmNorms are the norms before attention and MLP.
type lmNorms struct {
	Norm1 engine.Tensor `weight:"input_layernorm.weight" shape:"E"`
	Norm2 engine.Tensor `weight:"post_attention_layernorm.weight" shape:"E"`
}

// lmNormsPlus1 are those of Qwen3.5, whose weights files store minus 1.
type lmNormsPlus1 struct {
	Norm1 engine.Tensor `weight:"input_layernorm.weight,plus1" shape:"E"`
	Norm2 engine.Tensor `weight:"post_attention_layernorm.weight,plus1" shape:"E"`
}

// lmSandwich are Gemma's norms, which also follow attention and MLP; files store the weights minus 1.
type lmSandwich struct {
	Norm1 engine.Tensor `weight:"input_layernorm.weight,plus1" shape:"E"`
	Norm2 engine.Tensor `weight:"pre_feedforward_layernorm.weight,plus1" shape:"E"`
	Post1 engine.Tensor `weight:"post_attention_layernorm.weight,plus1" shape:"E"`
	Post2 engine.Tensor `weight:"post_feedforward_layernorm.weight,plus1" shape:"E"`
}

// lmSandwichKey is the tensor by which language models with such norms are recognized.
const lmSandwichKey = "model.layers.0.post_feedforward_layernorm.weight"

type lmHeadNorm struct {
	Q engine.Tensor `weight:"q_norm.weight,perm=d" shape:"D"`
	K engine.Tensor `weight:"k_norm.weight,perm=d" shape:"D"`
}

// lmHeadPlus1 are Heads, and lmPlus1 is a norm, whose weights files store minus 1.
type lmHeadPlus1 struct {
	Q engine.Tensor `weight:"q_norm.weight,plus1,perm=d" shape:"D"`
	K engine.Tensor `weight:"k_norm.weight,plus1,perm=d" shape:"D"`
}

type lmPlus1 struct {
	Weight engine.Tensor `weight:"weight,plus1" shape:"E"`
}
