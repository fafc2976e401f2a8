package text

import (
	"patchbay/engine"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// BERT is a loaded BERT encoder. It holds only weights and may be shared.
type BERT struct {
	loaded[bertWeights]
	Config EncoderConfig
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
// of the file's metadata entry "config", empty if there is none. The caller must close the result.
func OpenBERT(ops engine.Ops, set *weights.Set, config []byte) (*BERT, error) {
	return openBERT(ops, set, config, 0)
}

// openBERT is OpenBERT with the room of OpenParts.
func openBERT(ops engine.Ops, set *weights.Set, config []byte, room int64) (*BERT, error) {
	const layers = "bert.encoder.layer"
	_, set, err := findPart(set, "bert")
	if err != nil {
		return nil, err
	}
	b := &BERT{Config: EncoderConfig{Eps: 1e-12, Start: 101, End: 102}} // [CLS], [SEP]
	b.Config, err = b.Config.infer(set, "bert.embeddings.word_embeddings.weight",
		"bert.embeddings.position_embeddings.weight", layers, "intermediate.dense.weight", config)
	if err != nil {
		return nil, err
	}
	b.weights.Layer = make([]bertLayer, b.Config.Layers)
	opt := weights.Options{
		Spare: true, Model: "bert", Dims: b.Config.dims(),
		Ignore: []string{"bert.pooler.", "cls.", "bert.embeddings.position_ids"},
	}
	if err := within(ops, &opt, set, layers, b.Config.Layers, room); err != nil {
		return nil, err
	}
	return b, b.load(ops, set, opt)
}

func (b BERT) Adapt(ops engine.Ops, additions []weights.LowRank) (_ Net, err error) {
	b.loaded, err = b.adapt(ops, additions)
	return &b, err
}

// Encode encodes chunks of at most Positions tokens; padding after the end token is masked out of attention. It returns
// an error if a token id is outside the vocabulary, and errors of Check and of the device.
func (b *BERT) Encode(env Env, chunks [][]tokenizer.Token, f Form) (Encoding, error) {
	view, env, end, err := b.brought(env)
	if err != nil {
		return Encoding{}, err
	}
	defer end()
	b = &BERT{view, b.Config}
	n := b.Config.network("bert")
	n.memory = func(a *engine.Arena, dtype engine.DType, items, l int) { b.work(a, dtype, items, l) }
	n.run = func(env Env, chunks [][]tokenizer.Token) (engine.Tensor, engine.Tensor, error) {
		h, err := b.run(env, chunks, n.special.lengths(chunks), f)
		return h, engine.Tensor{}, err
	}
	return encode(env, n, chunks)
}

func (b *BERT) work(a *engine.Arena, dtype engine.DType, n, l int) work {
	e := b.Config.Width
	row := func(c int) engine.Tensor { return a.Alloc(dtype, n, l, c) }
	return work{
		x: row(e), q: row(e), k: row(e), v: row(e), o: row(e), hidden: row(b.Config.MLP),
		position: a.Alloc(dtype, 1, l, e),
	}
}

// run runs the encoder: post-norm blocks.
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
		if err := env.step(i); err != nil {
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
