package text

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// LMConfig describes a decoder-only language model that is used as an encoder (Qwen3: arXiv:2505.09388, sec. 2;
// Qwen2.5-VL and Qwen3-VL without their vision towers: arXiv:2502.13923; Mistral Small 3; Gemma 2: arXiv:2408.00118,
// sec. 2; Gemma 3: arXiv:2503.19786, sec. 2; all have LLaMA's architecture, arXiv:2302.13971, with grouped-query
// attention, arXiv:2305.13245; Qwen3.5 has it in every fourth layer, see delta). Names are those of Hugging Face's
// config.json. Sizes follow from shapes; files whose Theta, Eps or HeadDim differ say so in their metadata.
type LMConfig struct {
	Width   int     `json:"hidden_size"`         // 2560 (Qwen3-4B)
	HeadDim int     `json:"head_dim"`            // 128
	Heads   int     `json:"num_attention_heads"` // 32
	KVHeads int     `json:"num_key_value_heads"` // 8
	Layers  int     `json:"num_hidden_layers"`   // 36
	MLP     int     `json:"intermediate_size"`   // 9728
	Vocab   int     `json:"vocab_size"`          // 151936
	Theta   float64 `json:"rope_theta"`          // 1e6
	Eps     float32 `json:"rms_norm_eps"`        // 1e-6
	Pad     int     `json:"pad_token_id"`        // 151643; it and all later tokens are masked as keys; None: nothing is
	// Interleaved: rotary pairs belong to time, row and column in turn (Qwen3-VL), not in sections.
	Interleaved bool `json:"interleaved_mrope"`
	// gemma: norms before and after attention and MLP, embeddings times the square root of the width, GELU as the gate.
	// Scores are not soft-capped, as in ComfyUI.
	gemma  bool
	nearby nearby // of Gemma 3 and 4
	delta  delta  // of Qwen3.5
	// Of layers that see what is nearby, how many tokens; of Gemma 4, how many layers at the end read keys and values of
	// earlier ones, and which tokens are never written.
	Window     int   `json:"sliding_window"`
	Shared     int   `json:"num_kv_shared_layers"`
	Suppressed []int `json:"suppress_tokens"`
	four       *gemma4
}

// LM is a loaded language model, or one tensor-parallel part of it (OpenParts). Encode returns states of its layers,
// Generate produces text.
type LM struct {
	loaded[lmWeights]
	Config LMConfig
}

// lastNorm is the norm after the last layer.
const lastNorm = "model.norm.weight"

// describeLM finds the language model in set, whose names may have one of the usual prefixes (see Find). config is the
// JSON of the file's metadata entry "config", empty if there is none. The returned set's names have no prefix.
func describeLM(set *weights.Set, config []byte) (Part, LMConfig, *weights.Set, error) {
	part, set, err := findPart(set, "qwen3", "qwen3_8b", "qwen3vl_4b", "qwen3vl_8b", "qwen3vl_32b", "qwen25_7b",
		"mistral3", "gemma2_2b", "gemma3_12b", "gemma4", "gemma4_e", "qwen35")
	if err != nil {
		return part, LMConfig{}, nil, err
	}
	c, err := inferLM(part.Kind, set, config)
	return part, c, set, err
}

// openLM loads the language model that describeLM finds, split by heads and MLP columns over the first min(len(ops),
// KVHeads) of ops; a part whose Ops is nil is not loaded and nil in the result.
func openLM(ops []engine.Ops, set *weights.Set, config []byte, room int64) ([]Net, error) {
	part, c, set, err := describeLM(set, config)
	if err != nil {
		return nil, err
	}
	ignore := []string{
		"lm_head.", "model.lm_head.", "visual.", "vision_model.", "vision_tower.", "multi_modal_projector.",
		"model.vision_tower.", "model.multi_modal_projector.", "tekken_model", "spiece_model", projections, "mtp.",
		"tokenizer_json", "audio_model.", "audio_projector.",
	}
	if c.gemma && !c.nearby.some() { // nothing reads the states after Gemma 2's last layer
		ignore = append(ignore, lastNorm)
	}
	if n := KindOf(part.Kind).layers; n > 0 && n < c.Layers {
		for i := n; i < c.Layers; i++ {
			ignore = append(ignore, fmt.Sprintf("model.layers.%d.", i))
		}
		c.Layers, ignore = n, append(ignore, lastNorm)
	}
	opt := weights.Options{
		Spare: true, Model: part.Kind, Ignore: ignore, Ranks: c.parts(len(ops)),
		Dims: map[string]int{
			"E": c.Width, "D": c.HeadDim, "Q": c.Heads * c.HeadDim, "K": c.KVHeads * c.HeadDim, "F": c.MLP, "V": c.Vocab,
			"G": c.Heads * c.HeadDim,
		},
		Units: map[string]int{
			"Q": c.Heads / c.KVHeads * c.HeadDim, "G": c.Heads / c.KVHeads * c.HeadDim, "K": c.HeadDim,
		},
		Perms: map[string][]int{
			"q": halvesTogether(c.Heads, c.HeadDim), "k": halvesTogether(c.KVHeads, c.HeadDim),
			"d": halvesTogether(1, c.HeadDim),
		},
	}
	if c.delta.some() {
		c.delta.options(&opt, c)
	}
	var four []*layer4
	if c.four != nil {
		var unused []string
		four, unused = c.layers4(set)
		opt.Ignore = append(opt.Ignore, unused...)
		opt.Dims["I"], opt.Dims["N"] = c.four.inputs, c.Layers
		c.perms4(opt.Perms)
	}
	var of engine.Ops // of any part
	for _, o := range ops {
		of = cmp.Or(of, o)
	}
	if err := within(of, &opt, set, "model.layers", c.Layers, room); err != nil {
		return nil, err
	}
	var out []Net
	for opt.Rank = range opt.Ranks {
		if ops[opt.Rank] == nil {
			out = append(out, nil)
			continue
		}
		first := opt.Rank == 0
		opt.Uses = func(u dit.Use) bool { return first || u != dit.ForEmbed }
		m := &LM{Config: c}
		if m.weights.Four = four; c.four != nil && c.four.inputs > 0 {
			m.weights.Inputs = &inputs4{}
		}
		for i := range c.Layers - len(four) {
			layer := &lmLayer{Norms: &lmNorms{}, Full: &lmAttention{}}
			switch {
			case c.delta.some():
				layer = c.delta.layer(set, i)
			case c.gemma:
				layer.Norms, layer.Gemma = nil, &lmSandwich{}
			}
			switch {
			case layer.Full == nil:
			case c.plus1():
				layer.Full.Plus1 = &lmHeadPlus1{}
			case set.Has("model.layers.0.self_attn.q_norm.weight"):
				layer.Full.Heads = &lmHeadNorm{}
			}
			m.weights.Layer = append(m.weights.Layer, layer)
		}
		switch {
		case !set.Has(lastNorm) || slices.Contains(ignore, lastNorm):
		case c.plus1() && c.four == nil:
			m.weights.Last = &lmPlus1{}
		default:
			m.weights.Final = &lmNorm{}
		}
		if err := m.load(ops[opt.Rank], set, opt); err != nil {
			for _, m := range out {
				if m != nil {
					m.Close()
				}
			}
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// plus1 reports whether files store the weights of norms of heads, and of the last one, minus 1.
func (c LMConfig) plus1() bool { return c.nearby.some() || c.delta.some() }

// isCutQwen reports whether the language model under a prefix is Qwen3-VL-32B, of which files have the first 50 layers
// and no final norm.
func isCutQwen(set *weights.Set, prefix string) bool {
	if !set.Has(prefix + deepKey) {
		return false
	}
	switch set.Dim(prefix+"model.embed_tokens.weight", 1) {
	case 5120:
		return true
	case 2560, 4096: // of the smaller ones
		return false
	}
	return !set.Has(prefix + lastNorm)
}

// inferLM reads the configuration from names and shapes, and from config what these do not say.
func inferLM(kind string, set *weights.Set, config []byte) (LMConfig, error) {
	const attn, mlp = "model.layers.0.self_attn.", "model.layers.0.mlp."
	c := LMConfig{HeadDim: 128, Theta: 1e6, Eps: 1e-6, Pad: 151643}
	switch kind {
	case "mistral3":
		c.Theta, c.Eps, c.Pad = 1e9, 1e-5, 0
	case "qwen3vl_4b", "qwen3vl_8b":
		c.Theta, c.Interleaved = 5e6, true
	case "qwen3vl_32b": // its only user masks nothing
		c.Theta, c.Interleaved, c.Pad = 5e6, true, tokenizer.None
	case "gemma2_2b":
		c.HeadDim, c.Theta, c.Pad, c.gemma = 256, 1e4, 0, true
	case "gemma3_12b":
		c.HeadDim, c.Theta, c.Pad, c.gemma, c.nearby = 256, 1e6, 0, true, gemma3()
	case "gemma4", "gemma4_e":
		c.defaultsGemma4(set)
	}
	if kind == "qwen35" {
		return inferDelta(set, config)
	}
	if err := override(config, &c); err != nil {
		return c, err
	}
	if c.Window > 0 && c.nearby.some() {
		c.nearby.window = c.Window
	}
	c.Width, c.Vocab = set.Dim("model.embed_tokens.weight", 1), set.Dim("model.embed_tokens.weight", 0)
	c.Layers, c.MLP = set.Count("model.layers"), set.Dim(mlp+"gate_proj.weight", 0)
	err := c.infer(set.Dim(attn+"q_proj.weight", 0), set.Dim(attn+"k_proj.weight", 0))
	if err == nil && c.four != nil {
		err = c.checkGemma4(set)
	}
	return c, err
}

// infer reads the numbers of heads from the rows of queries and keys, and checks what is not from shapes.
func (c *LMConfig) infer(q, k int) error {
	switch {
	case c.HeadDim < 2 || c.HeadDim%2 != 0 || q%c.HeadDim != 0 || k%c.HeadDim != 0 || k == 0 || q%k != 0:
		return fmt.Errorf("text encoder config: head_dim is %d, must be even and divide the %d rows of queries and the "+
			"%d of keys, these divide those", c.HeadDim, q, k)
	case c.Width < 1 || c.MLP < 1 || c.Layers < 1 || c.Layers > 1<<10:
		return fmt.Errorf("text encoder: width %d, intermediate size %d and %d layers (allowed: 1..1024 layers)",
			c.Width, c.MLP, c.Layers)
	case !(c.Eps > 0) || !(c.Theta > 0):
		return fmt.Errorf("text encoder config: rms_norm_eps is %g and rope_theta %g, must be above 0", c.Eps, c.Theta)
	}
	c.Heads, c.KVHeads = q/c.HeadDim, k/c.HeadDim
	return nil
}

// parts returns the number of parts that a model is split into for n Ops: at most its key heads, of which some layers
// of Gemma 4 have one, and some of Qwen3.5 none.
func (c *LMConfig) parts(n int) int {
	if c.four != nil || c.delta.some() {
		return 1
	}
	return min(n, c.KVHeads)
}

func (m LM) Adapt(ops engine.Ops, additions []weights.LowRank) (_ Net, err error) {
	m.loaded, err = m.adapt(ops, additions)
	return &m, err
}

// Encode encodes chunks of any length. Tokens from the first pad on are computed but masked as keys, as in ComfyUI.
// With Form.Chat the states before the second <|im_start|>, or before the only one, are dropped, and also those of that
// token, "user" and the line break if these follow (not with Form.KeepHeader). It returns an error if a token id is
// outside the vocabulary, a tap is beyond the last layer or memory runs out, and errors of Check and of the device.
func (m *LM) Encode(env Env, chunks [][]tokenizer.Token, f Form) (Encoding, error) {
	view, env, end, err := m.brought(env)
	if err != nil {
		return Encoding{}, err
	}
	defer end()
	m = &LM{view, m.Config}
	cfg := m.Config
	if f.All {
		f.Taps = nil
		for i := range cfg.Layers + 1 {
			f.Taps = append(f.Taps, i)
		}
	}
	if n := len(f.Taps); n > 0 && f.Taps[n-1] > cfg.Layers {
		return Encoding{}, fmt.Errorf("encode language model: the states behind %d layers are wanted, the file has %d",
			f.Taps[n-1], cfg.Layers)
	}
	out, err := encode(env, network{
		name: "language model", special: Special{cfg.start(), tokenizer.None, cfg.Pad},
		width: cfg.Width, columns: len(f.Taps) * cfg.Width, vocab: cfg.Vocab, deep: len(f.Pictures) > 0,
		memory: func(a *engine.Arena, dtype engine.DType, b, l int) { m.work(a, dtype, b, l, f) },
		run: func(env Env, chunks [][]tokenizer.Token) (engine.Tensor, engine.Tensor, error) {
			var keys []int
			for _, chunk := range chunks {
				keys = append(keys, cfg.keys(chunk))
			}
			w := m.work(env.Arena, env.DType, len(chunks), len(chunks[0]), f)
			at := positions(chunks[0], f.Pictures)
			for i := keys[0]; f.PadsAtOne && i < len(at); i++ {
				at[i] = [3]int{1, 1, 1}
			}
			for i, behind := 0, f.Behind-len(at); behind > 0 && i < len(at); i++ {
				at[i] = [3]int{at[i][0] + behind, at[i][1] + behind, at[i][2] + behind}
			}
			h, err := m.run(env, w, chunks, at, keys, nil, f)
			return h, engine.Tensor{}, err
		},
	}, chunks)
	if f.All {
		out.States = len(f.Taps)
	}
	if err == nil && f.Chat {
		cut := chatHead(chunks[0], f.KeepHeader)
		out.Context.Rows -= cut
		out.Context.Data, out.Valid = out.Context.Data[cut*out.Context.Cols:], out.Valid[cut:]
	}
	return out, err
}

// start returns the token that an empty prompt begins with.
func (c LMConfig) start() int {
	if c.gemma {
		return 2
	}
	return tokenizer.None
}

// chatHead returns the number of tokens whose states Form.Chat drops.
func chatHead(chunk []tokenizer.Token, keepHeader bool) int {
	const start, user, newline = 151644, 872, 198
	is := func(i, id int) bool { return i < len(chunk) && chunk[i].Vector == nil && chunk[i].ID == id }
	cut, turns := 0, 0
	for i := 0; i < len(chunk) && turns < 2; i++ {
		if is(i, start) {
			cut, turns = i, turns+1
		}
	}
	if !keepHeader && turns > 0 && cut+3 < len(chunk) && is(cut+1, user) && is(cut+2, newline) {
		cut += 3
	}
	return cut
}

// lmWork holds the memory of one run: activations and the rotation [L, D/2] of every position.
type lmWork struct {
	work
	rope engine.RoPE
	deep engine.Tensor // [B, L, E]; only with pictures
	root engine.Tensor // [1, E] f32, the factor of Gemma's embeddings minus 1
	near near          // of layers that see what is nearby
	rule deltaWork     // of layers with a delta rule
	four work4         // of Gemma 4
}

func (m *LM) work(a *engine.Arena, dtype engine.DType, b, l int, f Form) lmWork {
	c := m.Config
	q, k, o, mlp := m.rows()
	row := func(n int) engine.Tensor { return a.Alloc(dtype, b, l, n) }
	w := lmWork{
		work: work{
			x: row(c.Width), norm: row(c.Width), q: row(q), k: row(k), v: row(k), o: row(o), hidden: row(mlp), gate: row(mlp),
		},
		rope: engine.RoPE{Cos: a.Alloc(engine.F32, l, c.HeadDim/2), Sin: a.Alloc(engine.F32, l, c.HeadDim/2)},
	}
	if len(f.Taps) > 0 {
		w.inner = row(len(f.Taps) * c.Width)
	}
	if len(f.Pictures) > 0 {
		w.deep = row(c.Width)
	}
	if c.gemma {
		w.root = a.Alloc(engine.F32, 1, c.Width)
	}
	w.near = c.nearby.room(a, l, c.HeadDim)
	w.rule = c.delta.room(row)
	if c.four != nil {
		w.four = m.work4(a, dtype, b, l)
	}
	return w
}

// rows returns the largest numbers of columns that queries (and gates), keys, results of attention and the MLP of a
// layer have.
func (m *LM) rows() (q, k, o, mlp int) {
	if m.Config.four == nil {
		i := slices.IndexFunc(m.weights.Layer, func(l *lmLayer) bool { return l.Full != nil })
		full := m.weights.Layer[i].Full
		return full.Q.N(), full.K.N(), full.O.K(), m.weights.Layer[i].Up.N()
	}
	for _, l := range m.weights.Four {
		q, mlp = max(q, l.query().Q.N()), max(mlp, l.Up.N())
		if keys := l.keys(); keys != nil {
			k = max(k, keys.K.N())
		}
	}
	return q, k, q, mlp
}

// run runs the decoder over tokens at their positions: pre-norm layers with causal attention. keys[i] is the number of
// tokens of chunk i that are attended to, nil: all; before is the KV cache of every layer, nil: none.
func (m *LM) run(env Env, w lmWork, chunks [][]tokenizer.Token, at [][3]int, keys []int, before []past, f Form,
) (engine.Tensor, error) {
	ops, cfg := env.Ops, m.Config
	if m.weights.Token.IsZero() {
		ops.Fill(w.x, 0)
	} else {
		env.embed(w.x, m.weights.Token, chunks)
	}
	if env.Sum != nil {
		env.Sum(w.x)
	}
	if cfg.gemma {
		ops.Fill(w.root, float32(math.Sqrt(float64(cfg.Width)))-1)
		ops.GatedAdd(w.x, w.x, w.root, w.x, engine.Tensor{})
	}
	cos, sin := cfg.rotation(at, cfg.Theta, cfg.nearby.stretch)
	ops.Upload(w.rope.Cos, cos)
	ops.Upload(w.rope.Sin, sin)
	cfg.near(ops, w.near, at)
	if cfg.four != nil {
		m.begin4(env, w, chunks, at, before != nil)
	}
	if before == nil {
		before = make([]past, cfg.Layers)
	}
	want, finished := f.read(cfg.Layers)
	for i := range cfg.Layers {
		if m.tap(ops, w, f, i) {
			return w.inner, nil
		}
		if err := env.step(i); err != nil {
			return engine.Tensor{}, err
		}
		if cfg.four != nil {
			m.layer4(env, w, i, keys, before)
		} else if err := m.layer(env, m.weights.Layer[i], w, cfg.nearby.sees(i), keys, before[i]); err != nil {
			return engine.Tensor{}, err
		}
		if len(f.Pictures) > 0 {
			w.deepen(ops, chunks, i+1)
		}
		if i == want && !finished && !f.Norm && f.Taps == nil {
			return w.x, nil // nothing reads the later layers
		}
	}
	switch {
	case m.weights.Final != nil:
		ops.RMSNorm(w.x, w.x, m.weights.Final.Weight, cfg.Eps)
	case m.weights.Last != nil:
		ops.RMSNorm(w.x, w.x, m.weights.Last.Weight, cfg.Eps)
	}
	if m.tap(ops, w, f, cfg.Layers) {
		return w.inner, nil
	}
	return w.x, nil
}

// deepen adds to the states after n layers what the tokens' vectors hold for them (DeepStack).
func (w lmWork) deepen(ops engine.Ops, chunks [][]tokenizer.Token, n int) {
	e := w.x.Dim(2)
	has := func(t tokenizer.Token) bool { return len(t.Vector) >= (n+1)*e }
	for b, chunk := range chunks {
		for i := 0; i < len(chunk); i++ {
			from := i
			var all []float32
			for ; i < len(chunk) && has(chunk[i]); i++ {
				all = append(all, chunk[i].Vector[n*e:(n+1)*e]...)
			}
			if i > from {
				rows := func(t engine.Tensor) engine.Tensor { return t.Slice(0, b, b+1).Slice(1, from, i) }
				ops.Upload(rows(w.deep), all)
				ops.Add(rows(w.x), rows(w.x), rows(w.deep))
			}
		}
	}
}

// tap saves the states after n layers if the form asks for them, and reports whether these were the last ones.
func (m *LM) tap(ops engine.Ops, w lmWork, f Form, n int) bool {
	at, e := slices.Index(f.Taps, n), m.Config.Width
	if at >= 0 {
		ops.Copy(w.inner.Slice(2, at*e, (at+1)*e), w.x)
	}
	return at >= 0 && at == len(f.Taps)-1
}

// keys returns the number of tokens before the first pad, all of them if there is none.
func (c LMConfig) keys(chunk []tokenizer.Token) int {
	for i, t := range chunk {
		if t.Vector == nil && t.ID == c.Pad {
			return i
		}
	}
	return len(chunk)
}

// add computes x += a W^T. If post is set, the product is normalized first. A part computes only its share of the
// product, which is summed over the parts before.
func (w lmWork) add(env Env, a engine.Tensor, weight *engine.Weight, post engine.Tensor, eps float32) {
	if env.Sum == nil && post.IsZero() {
		env.Ops.Linear(w.x, a, weight, engine.Epilogue{Residual: w.x})
		return
	}
	env.Ops.Linear(w.norm, a, weight, engine.Epilogue{})
	if env.Sum != nil {
		env.Sum(w.norm)
	}
	if !post.IsZero() {
		env.Ops.RMSNorm(w.norm, w.norm, post, eps)
	}
	env.Ops.Add(w.x, w.x, w.norm)
}

// layer runs one layer, which sees what is nearby or all. If before has memory, it continues what is in it.
func (m *LM) layer(env Env, layer *lmLayer, w lmWork, local bool, keys []int, before past) error {
	ops, cfg := env.Ops, m.Config
	norms, act := lmSandwich{}, engine.SiLU
	switch {
	case layer.Gemma != nil:
		norms, act = *layer.Gemma, engine.GELUTanh
	case layer.Plus1 != nil:
		norms.Norm1, norms.Norm2 = layer.Plus1.Norm1, layer.Plus1.Norm2
	default:
		norms.Norm1, norms.Norm2 = layer.Norms.Norm1, layer.Norms.Norm2
	}
	ops.RMSNorm(w.norm, w.x, norms.Norm1, cfg.Eps)
	if layer.Delta == nil {
		m.attention(env, layer.Full, w, local, keys, before)
		w.add(env, w.o, layer.Full.O, norms.Post1, cfg.Eps)
	} else {
		if err := layer.Delta.run(env, w, cfg, before.rule); err != nil {
			return err
		}
		w.add(env, w.rule.o, layer.Delta.Out, norms.Post1, cfg.Eps)
	}
	ops.RMSNorm(w.norm, w.x, norms.Norm2, cfg.Eps)
	ops.Linear(w.gate, w.norm, layer.Gate, engine.Epilogue{})
	ops.Linear(w.hidden, w.norm, layer.Up, engine.Epilogue{})
	ops.ActivateMul(w.hidden, w.gate, w.hidden, act)
	w.add(env, w.hidden, layer.Down, norms.Post2, cfg.Eps)
	return nil
}

// attention writes the heads' results for w.norm to w.o. If before has memory, new keys and values are appended to it
// and attention covers all of it.
func (m *LM) attention(env Env, layer *lmAttention, w lmWork, local bool, keys []int, before past) {
	ops, cfg := env.Ops, m.Config
	queries, groups := layer.O.K()/cfg.HeadDim, layer.K.N()/cfg.HeadDim
	ops.Linear(w.q, w.norm, layer.Q, engine.Epilogue{})
	ops.Linear(w.k, w.norm, layer.K, engine.Epilogue{})
	ops.Linear(w.v, w.norm, layer.V, engine.Epilogue{})
	n := layer.O.K() // rows of queries; those of gates may follow
	q, k, v := heads(w.q.Slice(2, 0, n), queries), heads(w.k, groups), heads(w.v, groups)
	var nq, nk engine.QKNorm
	h := layer.Heads
	if layer.Plus1 != nil {
		h = (*lmHeadNorm)(layer.Plus1)
	}
	if h != nil {
		nq = engine.QKNorm{Kind: engine.RMSNorm, KScale: h.Q, Eps: cfg.Eps}
		nk = engine.QKNorm{Kind: engine.RMSNorm, KScale: h.K, Eps: cfg.Eps}
	}
	rope, args := w.rope, engine.AttentionArgs{Causal: before.at == 0, KeyLen: keys}
	if local {
		rope = w.near.rope
	}
	// QKNormRoPE requires as many query heads as key heads, so each goes through it alone, as keys.
	none := engine.Tensor{}
	ops.QKNormRoPE(none, q, none, none, q, none, nq, rope)
	ops.QKNormRoPE(none, k, none, none, k, none, nk, rope)
	if l := w.k.Dim(1); !before.k.IsZero() {
		ops.Copy(before.k.Slice(1, before.at, before.at+l), w.k)
		ops.Copy(before.v.Slice(1, before.at, before.at+l), w.v)
		from, to := 0, before.at+l
		if local && l == 1 {
			from = max(0, to-cfg.nearby.window)
		}
		k, v = heads(before.k.Slice(1, from, to), groups), heads(before.v.Slice(1, from, to), groups)
	}
	// Query heads g*i .. g*i+g-1 read key head i: one Attention call per place in a group, over all groups.
	g := queries / groups
	if local && !w.near.bias.IsZero() {
		args.Bias = w.near.bias.Broadcast(0, groups)
	}
	grouped, out := q.Split(2, groups, g), heads(w.o, queries).Split(2, groups, g)
	for i := range g {
		ops.Attention(out.Index(3, i), grouped.Index(3, i), k, v, args)
	}
	if all := layer.Q.N(); all > n {
		ops.ActivateMul(w.o, w.q.Slice(2, n, all), w.o, engine.Sigmoid)
	}
}
