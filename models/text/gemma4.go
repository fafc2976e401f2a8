package text

import (
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// gemma4 is what a Gemma 4 has that Gemma 3 has not (ComfyUI comfy/text_encoders/gemma4.py). Its layers that see all
// have wider heads, of which a quarter of the pairs rotates, and may have neither values of their own, which are keys
// then, nor as many key heads. Scores are not scaled, values are normalized, and every layer's result has a factor.
type gemma4 struct {
	far, farKeys int // width and number of key heads of layers that see all
	inputs       int // columns that every layer reads of the token itself; 0: none (12B, 31B)
}

// perLayerTable is the tensor by which the smaller models are told from the larger ones.
const perLayerTable = "model.embed_tokens_per_layer.weight"

// isGemma4 returns the function that reports whether the language model under a prefix is a Gemma 4, whose layers have
// a factor, and one that reads inputs of every layer (E2B, E4B) or not (12B, 31B).
func isGemma4(small bool) func(set *weights.Set, prefix string) bool {
	return func(set *weights.Set, prefix string) bool {
		return set.Has(prefix+lmSandwichKey) && set.Has(prefix+"model.layers.0.layer_scalar") &&
			set.Has(prefix+perLayerTable) == small
	}
}

// layerName returns the name of a tensor of a layer.
func layerName(i int, name string) string { return fmt.Sprintf("model.layers.%d.%s", i, name) }

// defaultsGemma4 sets what neither shapes nor the file's metadata tell, as ComfyUI knows it by the number of layers.
func (c *LMConfig) defaultsGemma4(set *weights.Set) {
	const keyNorm = "self_attn.q_norm.weight"
	layers := set.Count("model.layers")
	c.HeadDim, c.Theta, c.Pad, c.gemma = set.Dim(layerName(0, keyNorm), 0), 1e6, 0, true
	c.nearby = nearby{window: 1024, every: layers + 1, theta: 1e4}
	c.four = &gemma4{far: c.HeadDim, inputs: set.Dim(layerName(0, "per_layer_input_gate.weight"), 0)}
	for i := range layers {
		if d := set.Dim(layerName(i, keyNorm), 0); d != c.HeadDim {
			c.nearby.every, c.four.far = i+1, d
			c.four.farKeys = set.Dim(layerName(i, "self_attn.k_proj.weight"), 0) / max(d, 1)
			if !set.Has(layerName(i, "self_attn.v_proj.weight")) { // 12B
				c.Suppressed = []int{258882, 258883}
			}
			break
		}
	}
	if c.four.inputs > 0 {
		c.nearby.window = 512
		c.Shared = map[int]int{35: 20, 42: 18}[layers] // E2B, E4B
	}
}

// checkGemma4 returns an error if layers cannot share keys as configured, or heads do not fit.
func (c *LMConfig) checkGemma4(set *weights.Set) error {
	own := c.Layers - c.Shared
	switch {
	case c.Shared < 0 || c.Shared > 0 && own < c.nearby.every:
		return fmt.Errorf("text encoder config: num_kv_shared_layers is %d of %d layers, allowed are 0..%d", c.Shared,
			c.Layers, max(0, c.Layers-c.nearby.every))
	case c.four.far < 8 || c.four.far%8 != 0:
		return fmt.Errorf("text encoder: heads of %d elements, must be a multiple of 8", c.four.far)
	}
	for i := range own {
		d := c.headDim(i)
		q, k := set.Dim(layerName(i, "self_attn.q_proj.weight"), 0), set.Dim(layerName(i, "self_attn.k_proj.weight"), 0)
		if q != c.Heads*d || k < d || k%d != 0 || c.Heads%(k/d) != 0 {
			return fmt.Errorf("text encoder: layer %d has %d rows of queries and %d of keys for %d heads of %d elements", i, q,
				k, c.Heads, d)
		}
	}
	return nil
}

// headDim returns the number of elements of a head in layer i.
func (c *LMConfig) headDim(i int) int {
	if c.four != nil && !c.nearby.sees(i) {
		return c.four.far
	}
	return c.HeadDim
}

// source returns the layer whose keys and values layer i reads: its own, or the last one of its kind that has some.
func (c *LMConfig) source(i int) int {
	from := i
	if own := c.Layers - c.Shared; i >= own {
		for from = own - 1; c.nearby.sees(from) != c.nearby.sees(i); {
			from--
		}
	}
	return from
}

// shares reports whether later layers read the keys and values of layer i.
func (c *LMConfig) shares(i int) bool {
	for later := c.Layers - c.Shared; later < c.Layers; later++ {
		if c.source(later) == i {
			return true
		}
	}
	return false
}

// inputs4 are the inputs of every layer, of tokens and of their embeddings.
type inputs4 struct {
	Words engine.Tensor  `weight:"embed_tokens_per_layer.weight,keep" shape:"V,N*I" use:"embed"`
	From  *engine.Weight `weight:"per_layer_model_projection,nobias" shape:"N*I,E"`
	Norm  engine.Tensor  `weight:"per_layer_projection_norm.weight" shape:"I"`
}

// layer4 is one layer of Gemma 4. Exactly one of Query and FarQuery is set, and one of Keys and FarKeys unless the
// layer reads those of another. Near and far ones differ in the order of their rows.
type layer4 struct {
	Norm1    engine.Tensor  `weight:"input_layernorm.weight" shape:"E"`
	Post1    engine.Tensor  `weight:"post_attention_layernorm.weight" shape:"E"`
	Norm2    engine.Tensor  `weight:"pre_feedforward_layernorm.weight" shape:"E"`
	Post2    engine.Tensor  `weight:"post_feedforward_layernorm.weight" shape:"E"`
	Query    *query4        `weight:"self_attn"`
	FarQuery *farQuery4     `weight:"self_attn"`
	Keys     *keys4         `weight:"self_attn"`
	FarKeys  *farKeys4      `weight:"self_attn"`
	O        *engine.Weight `weight:"self_attn.o_proj,nobias" shape:"E,Q"`
	Gate     *engine.Weight `weight:"mlp.gate_proj,nobias" shape:"F,E"`
	Up       *engine.Weight `weight:"mlp.up_proj,nobias" shape:"F,E"`
	Down     *engine.Weight `weight:"mlp.down_proj,nobias" shape:"E,F"`
	Factor   engine.Tensor  `weight:"layer_scalar" shape:"1"`
	Input    *input4        `weight:""` // nil: layers have no inputs
	sizes    map[string]int
}

// Sizes implements weights.Sized.
func (l *layer4) Sizes() map[string]int { return l.sizes }

type query4 struct {
	Q    *engine.Weight `weight:"q_proj,nobias,perm=q" shape:"Q,E"`
	Norm engine.Tensor  `weight:"q_norm.weight,perm=d" shape:"D"`
}

type farQuery4 struct {
	Q    *engine.Weight `weight:"q_proj,nobias,perm=far q" shape:"Q,E"`
	Norm engine.Tensor  `weight:"q_norm.weight,perm=far d" shape:"D"`
}

type keys4 struct {
	K    *engine.Weight `weight:"k_proj,nobias,perm=k" shape:"K,E"`
	V    *engine.Weight `weight:"v_proj,nobias,alt=k_proj" shape:"K,E"`
	Norm engine.Tensor  `weight:"k_norm.weight,perm=d" shape:"D"`
}

type farKeys4 struct {
	K    *engine.Weight `weight:"k_proj,nobias,perm=far k" shape:"K,E"`
	V    *engine.Weight `weight:"v_proj,nobias,alt=k_proj" shape:"K,E"`
	Norm engine.Tensor  `weight:"k_norm.weight,perm=far d" shape:"D"`
}

// input4 lets a layer read its input.
type input4 struct {
	Gate *engine.Weight `weight:"per_layer_input_gate,nobias" shape:"I,E"`
	To   *engine.Weight `weight:"per_layer_projection,nobias" shape:"E,I"`
	Post engine.Tensor  `weight:"post_per_layer_input_norm.weight" shape:"E"`
}

// perms4 adds the row orders of layers that see all.
func (c *LMConfig) perms4(perms map[string][]int) {
	perms["far q"], perms["far k"] = halvesTogether(c.Heads, c.four.far), halvesTogether(c.four.farKeys, c.four.far)
	perms["far d"] = halvesTogether(1, c.four.far)
}

// layers4 makes the layers to fill from set, and the prefixes of names that they leave unused.
func (c *LMConfig) layers4(set *weights.Set) (out []*layer4, ignore []string) {
	for i := range c.Layers {
		rows := func(name string) int { return set.Dim(layerName(i, name), 0) }
		l := &layer4{sizes: map[string]int{
			"D": c.headDim(i), "Q": c.Heads * c.headDim(i), "K": rows("self_attn.k_proj.weight"),
			"F": rows("mlp.gate_proj.weight"),
		}}
		own := c.source(i) == i
		switch near := c.nearby.sees(i); {
		case near:
			if l.Query = (&query4{}); own {
				l.Keys = &keys4{}
			}
		default:
			if l.FarQuery = (&farQuery4{}); own {
				l.FarKeys = &farKeys4{}
			}
		}
		if !own {
			for _, name := range []string{"k_proj.", "v_proj.", "k_norm."} {
				ignore = append(ignore, layerName(i, "self_attn."+name))
			}
		}
		if c.four.inputs > 0 {
			l.Input = &input4{}
		}
		out = append(out, l)
	}
	return out, ignore
}

// query returns the projection of queries and their norm.
func (l *layer4) query() query4 {
	if l.Query != nil {
		return *l.Query
	}
	return query4(*l.FarQuery)
}

// keys returns the projections of keys and values and the norm of keys, nil if the layer has none.
func (l *layer4) keys() *keys4 {
	if l.FarKeys != nil {
		return (*keys4)(l.FarKeys)
	}
	return l.Keys
}

// work4 is the memory of one run of Gemma 4 beside lmWork.
type work4 struct {
	zero         engine.Tensor // [1, 1, E]
	factor       engine.Tensor // [1, E] f32
	far          engine.RoPE   // of layers that see all
	kept         [2]past       // keys and values that near layers share, and those that far ones do
	inputs       engine.Tensor // [B, L, N*I]
	words, gated engine.Tensor // [B, L, N*I], [B, L, I]
	wide         engine.Tensor // [1, N*I] f32
}

func (m *LM) work4(a *engine.Arena, dtype engine.DType, b, l int) (w work4) {
	c := &m.Config
	row := func(n int) engine.Tensor { return a.Alloc(dtype, b, l, n) }
	w.zero, w.factor = a.Alloc(dtype, 1, 1, c.Width), a.Alloc(engine.F32, 1, c.Width)
	w.far = engine.RoPE{Cos: a.Alloc(engine.F32, l, c.four.far/2), Sin: a.Alloc(engine.F32, l, c.four.far/2)}
	for i := range c.Layers {
		if c.shares(i) {
			n := m.weights.Four[i].keys().K.N()
			w.kept[kindOf(c.nearby.sees(i))] = past{k: row(n), v: row(n)}
		}
	}
	if n := c.four.inputs * c.Layers; n > 0 {
		w.inputs, w.words, w.gated, w.wide = row(n), row(n), row(c.four.inputs), a.Alloc(engine.F32, 1, n)
	}
	return w
}

func kindOf(near bool) int {
	if near {
		return 0
	}
	return 1
}

// first returns the first b*l*n elements of t [b, l, N] as [b, l, n].
func first(t engine.Tensor, n int) engine.Tensor {
	b, l := t.Dim(0), t.Dim(1)
	return t.Merge(0).Merge(0).Slice(0, 0, b*l*n).Split(0, b, l, n)
}

// begin4 fills what layers of Gemma 4 read beside the states w.x, which are the scaled embeddings of chunks at their
// positions. Only a model that writes reads inputs of the tokens themselves, as in ComfyUI.
func (m *LM) begin4(env Env, w lmWork, chunks [][]tokenizer.Token, at [][3]int, writes bool) {
	ops, c := env.Ops, &m.Config
	ops.Fill(w.four.zero, 0)
	cos, sin := c.farRotation(at)
	ops.Upload(w.four.far.Cos, cos)
	ops.Upload(w.four.far.Sin, sin)
	in := m.weights.Inputs
	if in == nil {
		return
	}
	n := c.four.inputs
	ops.Linear(w.four.inputs, w.x, in.From, engine.Epilogue{})
	rows := w.four.inputs.Split(2, c.Layers, n).Merge(0).Merge(0)
	// ComfyUI divides by the root of the width before: the norm does not see it but in its epsilon
	ops.RMSNorm(rows, rows, in.Norm, c.Eps*float32(c.Width))
	if !writes {
		return
	}
	env.embed(w.four.words, in.Words, chunks)
	ops.Fill(w.four.wide, float32(math.Sqrt(float64(n))))
	ops.GatedAdd(w.four.inputs, w.four.inputs, w.four.wide, w.four.words, engine.Tensor{})
	ops.Fill(w.four.wide, float32(math.Sqrt(0.5)))
	ops.Fill(w.four.words, 0)
	ops.GatedAdd(w.four.inputs, w.four.words, w.four.wide, w.four.inputs, engine.Tensor{})
}

// farRotation returns cos and sin of layers that see all, [l, far/2]: three quarters of the pairs do not rotate.
func (c *LMConfig) farRotation(at [][3]int) (cos, sin []float32) {
	wide := *c
	wide.HeadDim = c.four.far
	cos, sin = wide.rotation(at, c.Theta, 0)
	for i := range cos {
		if pairs := c.four.far / 2; i%pairs >= pairs/4 {
			cos[i], sin[i] = 1, 0
		}
	}
	return cos, sin
}

// layer4 runs layer i. before are the KV caches of all layers; if they have memory, new keys and values are appended to
// that of the layer, and attention covers all of it.
func (m *LM) layer4(env Env, w lmWork, i int, keys []int, before []past) {
	ops, c, layer, none := env.Ops, &m.Config, m.weights.Four[i], engine.Tensor{}
	d, near, from := c.headDim(i), c.nearby.sees(i), c.source(i)
	rope := w.four.far
	if near {
		rope = w.near.rope
	}
	norm := func(scale engine.Tensor) engine.QKNorm {
		return engine.QKNorm{Kind: engine.RMSNorm, KScale: scale, Eps: c.Eps}
	}
	ops.RMSNorm(w.norm, w.x, layer.Norm1, c.Eps)
	query := layer.query()
	q := first(w.q, query.Q.N())
	ops.Linear(q, w.norm, query.Q, engine.Epilogue{})
	q = heads(q, c.Heads)
	ops.QKNormRoPE(none, q, none, none, q, none, norm(query.Norm), rope)
	cache, kept := before[from], w.four.kept[kindOf(near)]
	l := w.x.Dim(1)
	var k, v engine.Tensor
	if own := layer.keys(); own != nil {
		k, v = first(w.k, own.K.N()), first(w.v, own.K.N())
		if c.shares(i) {
			k, v = kept.k, kept.v
		}
		ops.Linear(k, w.norm, own.K, engine.Epilogue{})
		ops.Linear(v, w.norm, own.V, engine.Epilogue{})
		kh, vh := heads(k, own.K.N()/d), heads(v, own.K.N()/d)
		ops.QKNormRoPE(none, kh, none, none, kh, none, norm(own.Norm), rope)
		ops.QKNormRoPE(none, vh, none, none, vh, none, norm(none), engine.RoPE{})
		if !cache.k.IsZero() {
			ops.Copy(cache.k.Slice(1, cache.at, cache.at+l), k)
			ops.Copy(cache.v.Slice(1, cache.at, cache.at+l), v)
		}
	} else {
		k, v = kept.k, kept.v
	}
	args := engine.AttentionArgs{Scale: 1, Causal: cache.at == 0, KeyLen: keys}
	if !cache.k.IsZero() {
		lo, hi := 0, cache.at+l
		if near && l == 1 {
			lo = max(0, hi-c.nearby.window)
		}
		k, v = cache.k.Slice(1, lo, hi), cache.v.Slice(1, lo, hi)
	}
	groups := k.Dim(2) / d
	if near && !w.near.bias.IsZero() {
		args.Bias = w.near.bias.Broadcast(0, groups)
	}
	k, v = heads(k, groups), heads(v, groups)
	out := first(w.o, c.Heads*d)
	grouped, to := q.Split(2, groups, c.Heads/groups), heads(out, c.Heads).Split(2, groups, c.Heads/groups)
	for g := range c.Heads / groups {
		ops.Attention(to.Index(3, g), grouped.Index(3, g), k, v, args)
	}
	w.add(env, out, layer.O, layer.Post1, c.Eps)
	ops.RMSNorm(w.norm, w.x, layer.Norm2, c.Eps)
	gate, hidden := first(w.gate, layer.Gate.N()), first(w.hidden, layer.Gate.N())
	ops.Linear(gate, w.norm, layer.Gate, engine.Epilogue{})
	ops.Linear(hidden, w.norm, layer.Up, engine.Epilogue{})
	ops.ActivateMul(hidden, gate, hidden, engine.GELUTanh)
	w.add(env, hidden, layer.Down, layer.Post2, c.Eps)
	if in := layer.Input; in != nil {
		n := c.four.inputs
		ops.Linear(w.four.gated, w.x, in.Gate, engine.Epilogue{})
		ops.ActivateMul(w.four.gated, w.four.gated, w.four.inputs.Slice(2, i*n, (i+1)*n), engine.GELUTanh)
		w.add(env, w.four.gated, in.To, in.Post, c.Eps)
	}
	ops.Copy(w.four.factor, layer.Factor.Unsqueeze(0).Broadcast(1, c.Width))
	ops.GatedAdd(w.x, w.four.zero.Broadcast(0, w.x.Dim(0)).Broadcast(1, l), w.four.factor, w.x, none)
}

// finish4 makes of the logits of Gemma 4 those that tokens are drawn from: capped, and without what is never written.
func (c *LMConfig) finish4(logits []float32) {
	const most = 30
	for i, v := range logits {
		logits[i] = float32(most * math.Tanh(float64(v)/most))
	}
	for i := range logits {
		if slices.Contains(c.Suppressed, i) {
			logits[i] = -math.MaxFloat32
		}
	}
}
