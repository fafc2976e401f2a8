package text

import (
	"fmt"
	"strings"

	"patchbay/engine"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// T5Config describes a T5 encoder (arXiv:1910.10683; gated form arXiv:2002.05202) with the names of Hugging Face's
// config.json.
type T5Config struct {
	Width       int     `json:"d_model"`                         // 4096 (T5-XXL), 2048 (mT5-XL)
	HeadDim     int     `json:"d_kv"`                            // 64
	MLP         int     `json:"d_ff"`                            // 10240, 5120
	Layers      int     `json:"num_layers"`                      // 24
	Heads       int     `json:"num_heads"`                       // 64, 32
	Vocab       int     `json:"vocab_size"`                      // 32128, 250112
	Buckets     int     `json:"relative_attention_num_buckets"`  // 32
	MaxDistance int     `json:"relative_attention_max_distance"` // 128
	Eps         float32 `json:"layer_norm_epsilon"`              // 1e-6
	Act         string  `json:"dense_act_fn"`                    // "gelu_pytorch_tanh"; "relu" in the ungated form
	Gated       bool    `json:"is_gated_act"`                    // wi_0 and wi_1 instead of wi
	End         int     `json:"eos_token_id"`                    // 1
	Pad         int     `json:"pad_token_id"`                    // 0
}

// T5 is a loaded T5, mT5, umT5 or Pile-T5 encoder. It holds only weights and may be shared.
type T5 struct {
	loaded[t5Weights]
	Config T5Config
	act    engine.Act
}

type t5Weights struct {
	Token engine.Tensor `weight:"shared.weight,keep,alt=encoder.embed_tokens.weight" shape:"V,E"` // [V, E]
	Block []*t5Block    `weight:"encoder.block"`
	Final engine.Tensor `weight:"encoder.final_layer_norm.weight" shape:"E"` // [E]
}

// biased reports whether every block has a relative position bias of its own, as in Pile-T5 and umT5, instead of that
// of the first.
func biased(set *weights.Set, prefix string) bool {
	return set.Has(prefix + "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight")
}

// multilingual reports whether this is an mT5 or umT5, which have a large vocabulary.
func multilingual(set *weights.Set, prefix string) bool {
	return max(set.Dim(prefix+"shared.weight", 0), set.Dim(prefix+"encoder.embed_tokens.weight", 0)) > 200000
}

// isUMT5 reports whether this is a umT5, whose files, unlike Pile-T5's, bring their vocabulary.
func isUMT5(set *weights.Set, prefix string) bool {
	return biased(set, prefix) && (multilingual(set, prefix) || set.Has(prefix+"spiece_model"))
}

type t5Block struct {
	Bias  *t5Buckets     `weight:"layer.0.SelfAttention.relative_attention_bias"` // nil: the first block's is used
	Norm1 engine.Tensor  `weight:"layer.0.layer_norm.weight" shape:"E"`
	Q     *engine.Weight `weight:"layer.0.SelfAttention.q,nobias" shape:"I,E"`
	K     *engine.Weight `weight:"layer.0.SelfAttention.k,nobias" shape:"I,E"`
	V     *engine.Weight `weight:"layer.0.SelfAttention.v,nobias" shape:"I,E"`
	O     *engine.Weight `weight:"layer.0.SelfAttention.o,nobias" shape:"E,I"`
	Norm2 engine.Tensor  `weight:"layer.1.layer_norm.weight" shape:"E"`
	Gated *t5Gated       `weight:"layer.1.DenseReluDense"` // exactly one of Gated and Dense is set
	Dense *t5Dense       `weight:"layer.1.DenseReluDense"`
	Wo    *engine.Weight `weight:"layer.1.DenseReluDense.wo,nobias" shape:"E,F"`
}

type t5Buckets struct {
	Weight engine.Tensor `weight:"weight" shape:"N,H"`
}

type t5Gated struct {
	Wi0 *engine.Weight `weight:"wi_0,nobias" shape:"F,E"`
	Wi1 *engine.Weight `weight:"wi_1,nobias" shape:"F,E"`
}

type t5Dense struct {
	Wi *engine.Weight `weight:"wi,nobias" shape:"F,E"`
}

// OpenT5 loads a T5 or mT5 encoder from set, whose names may have one of the usual prefixes (see Find). config is the
// JSON of the file's metadata entry "config", empty if there is none. The caller must close the result.
func OpenT5(ops engine.Ops, set *weights.Set, config []byte) (*T5, error) {
	return openT5(ops, set, config, 0)
}

// openT5 is OpenT5 with the room of OpenParts.
func openT5(ops engine.Ops, set *weights.Set, config []byte, room int64) (*T5, error) {
	part, set, err := findPart(set, "t5", "mt5", "umt5", "pile_t5xl")
	if err != nil {
		return nil, err
	}
	t := &T5{}
	if t.Config, err = inferT5(set, config); err != nil {
		return nil, err
	}
	if t.act, err = act(t.Config.Act); err != nil {
		return nil, err
	}
	for i := range t.Config.Layers {
		b := &t5Block{}
		if i == 0 || biased(set, "") {
			b.Bias = &t5Buckets{}
		}
		if t.Config.Gated {
			b.Gated = &t5Gated{}
		} else {
			b.Dense = &t5Dense{}
		}
		t.weights.Block = append(t.weights.Block, b)
	}
	ignore := []string{"decoder.", "lm_head.", "spiece_model"}
	if set.Has("shared.weight") {
		ignore = append(ignore, "encoder.embed_tokens.weight") // a copy of the same table
	}
	c := t.Config
	opt := weights.Options{Spare: true, Model: part.Kind, Ignore: ignore, Dims: map[string]int{
		"E": c.Width, "I": c.Heads * c.HeadDim, "F": c.MLP, "V": c.Vocab, "N": c.Buckets, "H": c.Heads,
	}}
	if err := within(ops, &opt, set, "encoder.block", c.Layers, room); err != nil {
		return nil, err
	}
	return t, t.load(ops, set, opt)
}

// inferT5 reads the configuration from names and shapes, then lets config override it.
func inferT5(set *weights.Set, config []byte) (T5Config, error) {
	const attn, dense = "encoder.block.0.layer.0.SelfAttention.", "encoder.block.0.layer.1.DenseReluDense."
	table := "shared.weight"
	if !set.Has(table) {
		table = "encoder.embed_tokens.weight"
	}
	c := T5Config{
		Width: set.Dim(table, 1), Vocab: set.Dim(table, 0), Layers: set.Count("encoder.block"),
		Buckets: set.Dim(attn+"relative_attention_bias.weight", 0), Heads: set.Dim(attn+"relative_attention_bias.weight", 1),
		MaxDistance: 128, Eps: 1e-6, Act: "gelu_pytorch_tanh", Gated: true, End: 1, MLP: set.Dim(dense+"wi_0.weight", 0),
	}
	if set.Has(dense + "wi.weight") {
		c.Gated, c.Act, c.MLP = false, "relu", set.Dim(dense+"wi.weight", 0)
	}
	if biased(set, "") && !isUMT5(set, "") { // Pile-T5
		c.End, c.Pad = 2, 1
	}
	inner := set.Dim(attn+"q.weight", 0)
	c.HeadDim = inner / max(c.Heads, 1)
	stored := c
	var also struct {
		Proj string `json:"feed_forward_proj"` // "gated-gelu", "relu"
		Dtac string `json:"dense_act_fn"`
	}
	err := override(config, &c)
	if err == nil {
		err = override(config, &also)
	}
	if err != nil {
		return c, err
	}
	if name, ok := strings.CutPrefix(also.Proj, "gated-"); ok && also.Dtac == "" && name != "gelu" {
		c.Act = name
	}
	err = checkConfig("num_layers", c.Layers, "layer_norm_epsilon", c.Eps, size{"d_model", c.Width, stored.Width},
		size{"vocab_size", c.Vocab, stored.Vocab}, size{"d_ff", c.MLP, stored.MLP}, size{"num_heads", c.Heads, stored.Heads},
		size{"relative_attention_num_buckets", c.Buckets, stored.Buckets},
		size{"d_kv*num_heads", c.HeadDim * c.Heads, inner})
	switch {
	case err != nil:
		return c, err
	case c.Buckets < 4 || c.Buckets%2 != 0 || c.MaxDistance <= c.Buckets/4:
		return c, fmt.Errorf("text encoder config: %d buckets up to distance %d: buckets must be even, at least 4, the "+
			"distance above a quarter of them", c.Buckets, c.MaxDistance)
	case c.Gated != stored.Gated:
		return c, fmt.Errorf("text encoder config: is_gated_act is %v, the file has %v", c.Gated, stored.Gated)
	}
	return c, nil
}

func (t T5) Adapt(ops engine.Ops, additions []weights.LowRank) (_ Net, err error) {
	t.loaded, err = t.adapt(ops, additions)
	return &t, err
}

// Encode encodes chunks of at most 4096 tokens. It returns an error if a token id is outside the vocabulary or there is
// not enough memory for the scores, and errors of Check and of the device.
func (t *T5) Encode(env Env, chunks [][]tokenizer.Token, f Form) (Encoding, error) {
	view, env, end, err := t.brought(env)
	if err != nil {
		return Encoding{}, err
	}
	defer end()
	t = &T5{view, t.Config, t.act}
	cfg := t.Config
	special := Special{tokenizer.None, cfg.End, cfg.Pad}
	n := network{
		name: "t5", special: special, width: cfg.Width, vocab: cfg.Vocab, maxLength: t5MaxLength,
		memory: func(a *engine.Arena, dtype engine.DType, b, l int) { t.work(a, dtype, b, l) },
		run: func(env Env, chunks [][]tokenizer.Token) (engine.Tensor, engine.Tensor, error) {
			var keys []int
			if f.Masked {
				keys = special.lengths(chunks)
			}
			h, err := t.run(env, chunks, keys, f)
			for b := 0; b < len(keys) && f.Zeroed && err == nil; b++ {
				if keys[b] < h.Dim(1) {
					env.Ops.Fill(h.Slice(0, b, b+1).Slice(1, keys[b], h.Dim(1)), 0)
				}
			}
			return h, engine.Tensor{}, err
		},
	}
	if f.PadReference {
		n.special.End = tokenizer.None
	}
	return encode(env, n, chunks)
}

// t5MaxLength bounds a chunk because the position bias has H*L*L elements.
const t5MaxLength = 4096

func (t *T5) work(a *engine.Arena, dtype engine.DType, b, l int) work {
	e, inner := t.Config.Width, t.Config.Heads*t.Config.HeadDim
	row := func(n int) engine.Tensor { return a.Alloc(dtype, b, l, n) }
	return work{
		x: row(e), norm: row(e), inner: row(e), q: row(inner), k: row(inner), v: row(inner), o: row(inner),
		hidden: row(t.Config.MLP), gate: row(t.Config.MLP),
		bias: a.Alloc(engine.F32, t.Config.Heads, l, l), buckets: a.Alloc(engine.F32, l*l, t.Config.Heads),
	}
}

// run runs the encoder: pre-norm blocks whose attention scores are not scaled and get a position bias, which is
// computed once, or by every block that has its own.
func (t *T5) run(env Env, chunks [][]tokenizer.Token, keys []int, f Form) (engine.Tensor, error) {
	ops, cfg, l := env.Ops, t.Config, len(chunks[0])
	w := t.work(env.Arena, env.DType, len(chunks), l)
	env.embed(w.x, t.weights.Token, chunks)
	byHead := w.buckets.Split(0, l, l).Transpose(1, 2).Transpose(0, 1) // [Lq, Lk, H] -> [H, Lq, Lk]
	want, finished := f.read(cfg.Layers)
	for i, b := range t.weights.Block {
		if err := env.step(i); err != nil {
			return engine.Tensor{}, err
		}
		if b.Bias != nil {
			ops.Gather(w.buckets, b.Bias.Weight, buckets(l, cfg.Buckets, cfg.MaxDistance))
			ops.Copy(w.bias, byHead)
		}
		t.block(ops, b, w, keys)
		if i == want && !finished {
			ops.RMSNorm(w.inner, w.x, t.weights.Final, cfg.Eps)
			return w.inner, nil // nothing reads the later layers
		}
	}
	ops.RMSNorm(w.x, w.x, t.weights.Final, cfg.Eps)
	return w.x, nil
}

func (t *T5) block(ops engine.Ops, b *t5Block, w work, keys []int) {
	eps, h := t.Config.Eps, t.Config.Heads
	ops.RMSNorm(w.norm, w.x, b.Norm1, eps)
	w.attend(ops, w.norm, b.Q, b.K, b.V, h, engine.AttentionArgs{Scale: 1, Bias: w.bias, KeyLen: keys})
	ops.Linear(w.x, w.o, b.O, engine.Epilogue{Residual: w.x})
	ops.RMSNorm(w.norm, w.x, b.Norm2, eps)
	if b.Gated != nil {
		ops.Linear(w.gate, w.norm, b.Gated.Wi0, engine.Epilogue{})
		ops.Linear(w.hidden, w.norm, b.Gated.Wi1, engine.Epilogue{})
		ops.ActivateMul(w.hidden, w.gate, w.hidden, t.act)
	} else {
		ops.Linear(w.hidden, w.norm, b.Dense.Wi, engine.Epilogue{Act: t.act})
	}
	ops.Linear(w.x, w.hidden, b.Wo, engine.Epilogue{Residual: w.x})
}
