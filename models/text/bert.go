package text

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// BERTConfig describes a BERT encoder (arXiv:1810.04805) in the names of Hugging Face's config.json.
type BERTConfig struct {
	Width     int     `json:"hidden_size"`             // 1024
	Heads     int     `json:"num_attention_heads"`     // 16
	Layers    int     `json:"num_hidden_layers"`       // 24
	MLP       int     `json:"intermediate_size"`       // 4096
	Vocab     int     `json:"vocab_size"`              // 47020
	Positions int     `json:"max_position_embeddings"` // 512
	Eps       float32 `json:"layer_norm_eps"`          // 1e-12
	Start     int     `json:"bos_token_id"`            // 101, [CLS]
	End       int     `json:"eos_token_id"`            // 102, [SEP]
	Pad       int     `json:"pad_token_id"`            // 0
}

// BERT is a loaded BERT encoder. It holds weights only and may be shared.
type BERT struct {
	loaded[bertWeights]
	Config BERTConfig
}

type bertWeights struct {
	Token    engine.Tensor `weight:"bert.embeddings.word_embeddings.weight,keep" shape:"V,E"` // [V, E]
	Position engine.Tensor `weight:"bert.embeddings.position_embeddings.weight" shape:"P,E"`  // [512, E]
	// [2, E], only row 0 is used
	Type  engine.Tensor `weight:"bert.embeddings.token_type_embeddings.weight" shape:"2,E"`
	Norm  affine        `weight:"bert.embeddings.LayerNorm"`
	Layer []bertLayer   `weight:"bert.encoder.layer"`
}

type bertLayer struct {
	Q     *engine.Weight `weight:"attention.self.query" shape:"E,E"`
	K     *engine.Weight `weight:"attention.self.key" shape:"E,E"`
	V     *engine.Weight `weight:"attention.self.value" shape:"E,E"`
	Out   *engine.Weight `weight:"attention.output.dense" shape:"E,E"`
	Norm1 affine         `weight:"attention.output.LayerNorm"`
	FC1   *engine.Weight `weight:"intermediate.dense" shape:"F,E"`
	FC2   *engine.Weight `weight:"output.dense" shape:"E,F"`
	Norm2 affine         `weight:"output.LayerNorm"`
}

// OpenBERT loads a BERT encoder from set, whose names may have one of the usual prefixes (see Find). config is the JSON
// of the file's metadata "config", empty when there is none. The caller closes the result.
func OpenBERT(ops engine.Ops, set *weights.Set, config []byte) (*BERT, error) {
	_, set, err := findPart(set, "bert")
	if err != nil {
		return nil, err
	}
	b := &BERT{}
	if b.Config, err = inferBERT(set, config); err != nil {
		return nil, err
	}
	b.weights.Layer = make([]bertLayer, b.Config.Layers)
	opt := weights.Options{
		Model: "bert",
		Dims: map[string]int{
			"E": b.Config.Width, "F": b.Config.MLP, "V": b.Config.Vocab, "P": b.Config.Positions,
		},
		Ignore: []string{"bert.pooler.", "cls.", "bert.embeddings.position_ids"},
	}
	if err := b.load(ops, set, opt); err != nil {
		return nil, err
	}
	return b, nil
}

// inferBERT reads the configuration from names and shapes, then from config.
func inferBERT(set *weights.Set, config []byte) (BERTConfig, error) {
	const table, mlp, position = "bert.embeddings.word_embeddings.weight",
		"bert.encoder.layer.0.intermediate.dense.weight", "bert.embeddings.position_embeddings.weight"
	c := BERTConfig{
		Width: set.Dim(table, 1), Vocab: set.Dim(table, 0), Layers: set.Count("bert.encoder.layer"), MLP: set.Dim(mlp, 0),
		Positions: set.Dim(position, 0), Eps: 1e-12, Start: 101, End: 102,
	}
	c.Heads = max(c.Width/64, 1)
	stored := c
	if err := override(config, &c); err != nil {
		return c, err
	}
	if c.Heads < 1 || c.Width%c.Heads != 0 {
		return c, fmt.Errorf("text encoder config: num_attention_heads is %d, must divide the width %d", c.Heads, c.Width)
	}
	return c, checkConfig("num_hidden_layers", c.Layers, "layer_norm_eps", c.Eps,
		size{"hidden_size", c.Width, stored.Width}, size{"vocab_size", c.Vocab, stored.Vocab},
		size{"intermediate_size", c.MLP, stored.MLP}, size{"max_position_embeddings", c.Positions, stored.Positions})
}

// Adapt is Net.Adapt.
func (b BERT) Adapt(ops engine.Ops, additions []weights.LowRank) (_ Net, err error) {
	b.loaded, err = b.adapt(ops, additions)
	return &b, err
}

// Encode encodes chunks of at most Positions tokens; padding behind the end token is hidden from attention. Errors:
// token ids outside the vocabulary, Check's error, device errors.
func (b *BERT) Encode(env Env, chunks [][]tokenizer.Token, f Form) (Encoding, error) {
	cfg := b.Config
	special := Special{cfg.Start, cfg.End, cfg.Pad}
	return encode(env, network{
		name: "bert", special: special, width: cfg.Width, vocab: cfg.Vocab, maxLength: cfg.Positions,
		memory: func(a *engine.Arena, dtype engine.DType, n, l int) { b.work(a, dtype, n, l) },
		run: func(env Env, chunks [][]tokenizer.Token) (engine.Tensor, engine.Tensor, error) {
			h, err := b.run(env, chunks, special.lengths(chunks), f)
			return h, engine.Tensor{}, err
		},
	}, chunks)
}

func (b *BERT) work(a *engine.Arena, dtype engine.DType, n, l int) work {
	e := b.Config.Width
	row := func(c int) engine.Tensor { return a.Alloc(dtype, n, l, c) }
	return work{
		x: row(e), q: row(e), k: row(e), v: row(e), o: row(e), hidden: row(b.Config.MLP),
		position: a.Alloc(dtype, 1, l, e),
	}
}

// run is the encoder: post-norm blocks.
func (b *BERT) run(env Env, chunks [][]tokenizer.Token, keys []int, f Form) (engine.Tensor, error) {
	ops, cfg, l := env.Ops, b.Config, len(chunks[0])
	w := b.work(env.Arena, env.DType, len(chunks), l)
	env.embed(w.x, b.weights.Token, chunks)
	ops.Copy(w.position, b.weights.Position.Slice(0, 0, l).Unsqueeze(0))
	ops.Add(w.x, w.x, w.position)
	ops.Copy(w.position, b.weights.Type.Slice(0, 0, 1).Broadcast(0, l).Unsqueeze(0))
	ops.Add(w.x, w.x, w.position)
	ops.LayerNorm(w.x, w.x, b.weights.Norm.Weight, b.weights.Norm.Bias, cfg.Eps)
	want, _ := f.read(cfg.Layers)
	for i := range b.weights.Layer {
		if err := env.step(); err != nil {
			return engine.Tensor{}, err
		}
		b.layer(ops, &b.weights.Layer[i], w, keys)
		if i == want {
			break // nothing reads the later layers
		}
	}
	return w.x, nil
}

func (b *BERT) layer(ops engine.Ops, layer *bertLayer, w work, keys []int) {
	eps, h := b.Config.Eps, b.Config.Heads
	w.attend(ops, w.x, layer.Q, layer.K, layer.V, h, engine.AttentionArgs{KeyLen: keys})
	ops.Linear(w.x, w.o, layer.Out, engine.Epilogue{Residual: w.x})
	ops.LayerNorm(w.x, w.x, layer.Norm1.Weight, layer.Norm1.Bias, eps)
	ops.Linear(w.hidden, w.x, layer.FC1, engine.Epilogue{Act: engine.GELUErf})
	ops.Linear(w.x, w.hidden, layer.FC2, engine.Epilogue{Residual: w.x})
	ops.LayerNorm(w.x, w.x, layer.Norm2.Weight, layer.Norm2.Bias, eps)
}
