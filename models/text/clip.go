package text

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// EncoderConfig describes a CLIP text model (arXiv:2103.00020, sec. 2.4) or a BERT encoder (arXiv:1810.04805) with the
// names of Hugging Face's config.json. The values noted are those of CLIP-L, CLIP-G and HunyuanDiT's BERT.
type EncoderConfig struct {
	Width     int     `json:"hidden_size"`             // 768, 1280, 1024
	Heads     int     `json:"num_attention_heads"`     // 12, 20, 16
	Layers    int     `json:"num_hidden_layers"`       // 12, 32, 24
	MLP       int     `json:"intermediate_size"`       // 3072, 5120, 4096
	Act       string  `json:"hidden_act"`              // CLIP only: "quick_gelu", "gelu"
	Vocab     int     `json:"vocab_size"`              // 49408, 49408, 47020
	Positions int     `json:"max_position_embeddings"` // 77, 77, 512
	Eps       float32 `json:"layer_norm_eps"`          // 1e-5, 1e-5, 1e-12
	Start     int     `json:"bos_token_id"`            // 49406, 49406, 101
	End       int     `json:"eos_token_id"`            // 49407, 49407, 102
	Pad       int     `json:"pad_token_id"`            // 49407, 0, 0
}

// infer reads sizes from the shapes of the word and position tables and of the first MLP matrix ("<list>.0.<mlp>"),
// then lets config override everything.
func (c EncoderConfig) infer(set *weights.Set, words, positions, list, mlp string, config []byte,
) (EncoderConfig, error) {
	c.Width, c.Vocab, c.Positions = set.Dim(words, 1), set.Dim(words, 0), set.Dim(positions, 0)
	c.Layers, c.MLP = set.Count(list), set.Dim(list+".0."+mlp, 0)
	c.Heads = max(c.Width/64, 1) // all published models use a head size of 64
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

// dims returns the sizes that the shape tags refer to.
func (c EncoderConfig) dims() map[string]int {
	return map[string]int{"E": c.Width, "F": c.MLP, "V": c.Vocab, "P": c.Positions}
}

// network returns what encode needs to know about the encoder; the caller sets memory and run.
func (c EncoderConfig) network(name string) network {
	return network{
		name: name, special: Special{c.Start, c.End, c.Pad}, width: c.Width, vocab: c.Vocab, maxLength: c.Positions,
	}
}

// CLIP is a loaded CLIP text model. It holds only weights and may be shared.
type CLIP struct {
	loaded[clipWeights]
	Config EncoderConfig
	act    engine.Act
}

type clipWeights struct {
	Token      engine.Tensor  `weight:"text_model.embeddings.token_embedding.weight,keep" shape:"V,E"` // [V, E]
	Position   engine.Tensor  `weight:"text_model.embeddings.position_embedding.weight" shape:"P,E"`   // [77, E]
	Layer      []clipLayer    `weight:"text_model.encoder.layers"`
	Final      affine         `weight:"text_model.final_layer_norm"`
	Projection *engine.Weight `weight:"text_projection,optional,nobias" shape:"E,E"` // [E, E]
}

type clipLayer struct {
	Norm1 affine         `weight:"layer_norm1"`
	Q     *engine.Weight `weight:"self_attn.q_proj" shape:"E,E"`
	K     *engine.Weight `weight:"self_attn.k_proj" shape:"E,E"`
	V     *engine.Weight `weight:"self_attn.v_proj" shape:"E,E"`
	Out   *engine.Weight `weight:"self_attn.out_proj" shape:"E,E"`
	Norm2 affine         `weight:"layer_norm2"`
	FC1   *engine.Weight `weight:"mlp.fc1" shape:"F,E"`
	FC2   *engine.Weight `weight:"mlp.fc2" shape:"E,F"`
}

// affine holds a layer norm's weight and bias, [E] f32 each.
type affine struct {
	Weight engine.Tensor `weight:"weight" shape:"E"`
	Bias   engine.Tensor `weight:"bias" shape:"E"`
}

// OpenCLIP loads a CLIP text model from set, whose names may have one of the usual prefixes (see Find). config is the
// JSON of the file's metadata entry "config", empty if there is none; it overrides what names and shapes imply. The
// caller must close the result.
func OpenCLIP(ops engine.Ops, set *weights.Set, config []byte) (*CLIP, error) {
	return openCLIP(ops, set, config, 0)
}

// openCLIP is OpenCLIP with the room of OpenParts.
func openCLIP(ops engine.Ops, set *weights.Set, config []byte, room int64) (*CLIP, error) {
	const layers = "text_model.encoder.layers"
	part, set, err := findPart(set, "clip_l", "clip_g")
	if err != nil {
		return nil, err
	}
	const words = "text_model.embeddings.token_embedding.weight"
	last := set.Dim(words, 0) - 1
	c := &CLIP{Config: EncoderConfig{Act: "quick_gelu", Eps: 1e-5, Start: last - 1, End: last, Pad: last}}
	if part.Kind == "clip_g" {
		c.Config.Act, c.Config.Pad = "gelu", 0
	}
	c.Config, err = c.Config.infer(set, words, "text_model.embeddings.position_embedding.weight",
		layers, "mlp.fc1.weight", config)
	if err != nil {
		return nil, err
	}
	if c.act, err = act(c.Config.Act); err != nil {
		return nil, err
	}
	c.weights.Layer = make([]clipLayer, c.Config.Layers)
	opt := weights.Options{
		Spare: true, Model: part.Kind, Dims: c.Config.dims(),
		Ignore: []string{"text_model.embeddings.position_ids", "logit_scale", "vision_model.", "visual_projection."},
	}
	if err := within(ops, &opt, set, layers, c.Config.Layers, room); err != nil {
		return nil, err
	}
	return c, c.load(ops, set, opt)
}

func (c CLIP) Adapt(ops engine.Ops, additions []weights.LowRank) (_ Net, err error) {
	c.loaded, err = c.adapt(ops, additions)
	return &c, err
}

// Encode encodes chunks of at most Positions tokens. It returns an error if a token id is outside the vocabulary, and
// errors of Check and of the device.
func (c *CLIP) Encode(env Env, chunks [][]tokenizer.Token, f Form) (Encoding, error) {
	view, env, end, err := c.brought(env)
	if err != nil {
		return Encoding{}, err
	}
	defer end()
	c = &CLIP{view, c.Config, c.act}
	n := c.Config.network("clip")
	n.memory = func(a *engine.Arena, dtype engine.DType, b, l int) { c.work(a, dtype, b, l) }
	n.run = func(env Env, chunks [][]tokenizer.Token) (engine.Tensor, engine.Tensor, error) {
		return c.run(env, n.special, chunks, f)
	}
	return encode(env, n, chunks)
}

func (c *CLIP) work(a *engine.Arena, dtype engine.DType, b, l int) work {
	e := c.Config.Width
	row := func(n int) engine.Tensor { return a.Alloc(dtype, b, l, n) }
	return work{
		x: row(e), norm: row(e), q: row(e), k: row(e), v: row(e), o: row(e), inner: row(e), hidden: row(c.Config.MLP),
		position: a.Alloc(dtype, 1, l, e), pooled: a.Alloc(dtype, b, e), projected: a.Alloc(dtype, b, e),
	}
}

// run runs the transformer: pre-norm blocks with causal attention.
func (c *CLIP) run(env Env, special Special, chunks [][]tokenizer.Token, f Form,
) (hidden, pooled engine.Tensor, err error) {
	ops, cfg, l := env.Ops, c.Config, len(chunks[0])
	w := c.work(env.Arena, env.DType, len(chunks), l)
	env.embed(w.x, c.weights.Token, chunks)
	ops.Copy(w.position, c.weights.Position.Slice(0, 0, l).Unsqueeze(0))
	ops.Add(w.x, w.x, w.position)
	want, finished := f.read(cfg.Layers)
	for i := range c.weights.Layer {
		if err := env.step(i); err != nil {
			return hidden, pooled, err
		}
		c.weights.Layer[i].run(ops, w, cfg.Heads, cfg.Eps, c.act, true)
		if i == want && !finished {
			if f.Norm {
				ops.LayerNorm(w.inner, w.x, c.weights.Final.Weight, c.weights.Final.Bias, cfg.Eps)
			} else {
				ops.Copy(w.inner, w.x)
			}
		}
	}
	ops.LayerNorm(w.x, w.x, c.weights.Final.Weight, c.weights.Final.Bias, cfg.Eps)
	for b, chunk := range chunks {
		at := special.valid(chunk) - 1
		ops.Copy(w.pooled.Index(0, b), w.x.Index(0, b).Index(0, at))
	}
	pooled = w.pooled
	if f.Project && c.weights.Projection != nil {
		ops.Linear(w.projected, w.pooled, c.weights.Projection, engine.Epilogue{})
		pooled = w.projected
	}
	if finished {
		return w.x, pooled, nil
	}
	return w.inner, pooled, nil
}

// run runs a pre-norm block on w.x in place.
func (layer *clipLayer) run(ops engine.Ops, w work, h int, eps float32, act engine.Act, causal bool) {
	ops.LayerNorm(w.norm, w.x, layer.Norm1.Weight, layer.Norm1.Bias, eps)
	w.attend(ops, w.norm, layer.Q, layer.K, layer.V, h, engine.AttentionArgs{Causal: causal})
	ops.Linear(w.x, w.o, layer.Out, engine.Epilogue{Residual: w.x})
	ops.LayerNorm(w.norm, w.x, layer.Norm2.Weight, layer.Norm2.Bias, eps)
	ops.Linear(w.hidden, w.norm, layer.FC1, engine.Epilogue{Act: act})
	ops.Linear(w.x, w.hidden, layer.FC2, engine.Epilogue{Residual: w.x})
}
