package text

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"sync"

	"patchbay/engine"
	"patchbay/models/weights"
)

// delta says how Qwen3.5 differs from Qwen3: in three of four layers a gated delta rule takes the place of attention
// (Gated DeltaNet, arXiv:2412.06464), the results of attention pass gates, and only the first of every head's rows
// rotate. The zero value is for all other models.
type delta struct {
	heads    int // of values: 32 (Qwen3.5-9B)
	keyHeads int // of queries and keys, each of which serves as many heads of values: 16
	keys     int // of a head: 128
	values   int // of a head: 128
	taps     int // of the convolution: 4
	pairs    int // of a head that rotate: 32 of 128
}

func (d delta) some() bool { return d.heads > 0 }

// deltaKey is the tensor by which Qwen3.5 is recognized.
const deltaKey = "model.layers.0.linear_attn.A_log"

// lmDelta has the place of attention in a layer with a delta rule.
type lmDelta struct {
	QKV   *engine.Weight `weight:"in_proj_qkv,nobias" shape:"C,E"` // queries, keys, values
	Gate  *engine.Weight `weight:"in_proj_z,nobias" shape:"Z,E"`   // of the results
	Decay *engine.Weight `weight:"in_proj_a,nobias" shape:"N,E"`
	Rate  *engine.Weight `weight:"in_proj_b,nobias" shape:"N,E"`
	Conv  engine.Tensor  `weight:"conv1d.weight" shape:"C,1,T"`
	A     engine.Tensor  `weight:"A_log" shape:"N"`
	Bias  engine.Tensor  `weight:"dt_bias" shape:"N"` // of Decay
	Norm  engine.Tensor  `weight:"norm.weight" shape:"M"`
	Out   *engine.Weight `weight:"out_proj,nobias" shape:"E,Z"`
}

// inferDelta reads the configuration of a Qwen3.5. config may set head_dim (256), partial_rotary_factor (0.25),
// linear_key_head_dim (128), rope_theta and rms_norm_eps.
func inferDelta(set *weights.Set, config []byte) (LMConfig, error) {
	c := LMConfig{HeadDim: 256, Theta: 1e7, Eps: 1e-6, Pad: 248044, Interleaved: true}
	more := struct {
		Rotary float64 `json:"partial_rotary_factor"`
		Keys   int     `json:"linear_key_head_dim"`
	}{0.25, 128}
	if err := cmp.Or(override(config, &c), override(config, &more)); err != nil {
		return c, err
	}
	c.Width, c.Vocab = set.Dim("model.embed_tokens.weight", 1), set.Dim("model.embed_tokens.weight", 0)
	c.Layers, c.MLP = set.Count("model.layers"), set.Dim("model.layers.0.mlp.gate_proj.weight", 0)
	full := -1
	for i := range c.Layers {
		if set.Has(fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", i)) {
			full = i
			break
		}
	}
	if full < 0 {
		return c, fmt.Errorf("text encoder: a Qwen3.5 without attention: no self_attn.q_proj.weight in %d layers", c.Layers)
	}
	rows := func(name string) int {
		return set.Dim(fmt.Sprintf("model.layers.%d.self_attn.%s_proj.weight", full, name), 0)
	}
	if q := rows("q"); q%2 != 0 {
		return c, fmt.Errorf("text encoder: %d rows of queries and their gates, must be even", q)
	}
	if err := c.infer(rows("q")/2, rows("k")); err != nil {
		return c, err
	}
	const at = "model.layers.0.linear_attn."
	d := delta{
		heads: set.Dim(deltaKey, 0), keys: more.Keys, values: set.Dim(at+"norm.weight", 0),
		taps: set.Dim(at+"conv1d.weight", 2), pairs: int(float64(c.HeadDim)*more.Rotary) / 2,
	}
	keys := set.Dim(at+"in_proj_qkv.weight", 0) - d.heads*d.values // and queries
	switch {
	case d.keys < 1 || d.values < 1 || d.taps < 1 || keys < 2*d.keys || keys%(2*d.keys) != 0:
		return c, fmt.Errorf("text encoder config: linear_key_head_dim is %d, the file has %d rows of queries and keys, "+
			"%d values in a head and %d taps", d.keys, keys, d.values, d.taps)
	case d.pairs < 1 || d.pairs > c.HeadDim/2:
		return c, fmt.Errorf("text encoder config: partial_rotary_factor is %g, must be above 0 and at most 1", more.Rotary)
	}
	if d.keyHeads = keys / (2 * d.keys); d.heads%d.keyHeads != 0 {
		return c, fmt.Errorf("text encoder: %d heads of values, must be a multiple of the %d of keys", d.heads, d.keyHeads)
	}
	c.delta = d
	return c, nil
}

// options completes what openLM says about weights of all models.
func (d delta) options(opt *weights.Options, c LMConfig) {
	opt.Dims["C"], opt.Dims["Z"] = 2*d.keyHeads*d.keys+d.heads*d.values, d.heads*d.values
	opt.Dims["N"], opt.Dims["M"], opt.Dims["T"] = d.heads, d.values, d.taps
	opt.Dims["G"] = 2 * c.Heads * c.HeadDim
	opt.Perms["k"], opt.Perms["d"] = d.together(c.KVHeads, c.HeadDim), d.together(1, c.HeadDim)
	queries, gates := []int{}, []int{}
	for h := range c.Heads { // files store the gates of a head behind its queries
		at := 2 * h * c.HeadDim
		for k, row := range d.together(1, c.HeadDim) {
			queries, gates = append(queries, at+row), append(gates, at+c.HeadDim+k)
		}
	}
	opt.Perms["q"] = append(queries, gates...)
}

// together is halvesTogether for heads of which only the first rows rotate.
func (d delta) together(heads, dim int) (out []int) {
	for h := range heads {
		for _, row := range halvesTogether(1, 2*d.pairs) {
			out = append(out, h*dim+row)
		}
		for k := 2 * d.pairs; k < dim; k++ {
			out = append(out, h*dim+k)
		}
	}
	return out
}

// layer returns layer i to be loaded.
func (d delta) layer(set *weights.Set, i int) *lmLayer {
	out := &lmLayer{Plus1: &lmNormsPlus1{}}
	if set.Has(fmt.Sprintf("model.layers.%d.linear_attn.A_log", i)) {
		out.Delta = &lmDelta{}
	} else {
		out.Full = &lmAttention{}
	}
	return out
}

// deltaWork holds the activations of a layer with a delta rule, [B, L, n].
type deltaWork struct {
	qkv, gate, o, decay, rate engine.Tensor
}

// room allocates them; row allocates that many columns.
func (d delta) room(row func(n int) engine.Tensor) (w deltaWork) {
	if d.some() {
		n := d.heads * d.values
		w = deltaWork{row(2*d.keyHeads*d.keys + n), row(n), row(n), row(d.heads), row(d.heads)}
	}
	return w
}

// recurrence is what a layer with a delta rule keeps of the tokens so far: all that it needs of them for the next.
type recurrence struct {
	inputs []float32 // [taps-1, C] the last inputs of the convolution
	state  []float32 // [heads, keys, values]
	small  deltaSmall
}

// deltaSmall holds the weights of a layer that are used on the host.
type deltaSmall struct {
	conv, a, bias []float32 // [C, taps], [heads], [heads]
}

// run writes the layer's results for w.norm to w.rule.o. The recurrence itself runs on the host: it has few operations
// per token and no matrix. past is continued; nil: chunks begin, and nothing is kept.
func (l *lmDelta) run(env Env, w lmWork, c LMConfig, past *recurrence) error {
	ops, x, d := env.Ops, w.rule, c.delta
	ops.Linear(x.qkv, w.norm, l.QKV, engine.Epilogue{})
	ops.Linear(x.gate, w.norm, l.Gate, engine.Epilogue{})
	ops.Linear(x.decay, w.norm, l.Decay, engine.Epilogue{})
	ops.Linear(x.rate, w.norm, l.Rate, engine.Epilogue{})
	var s deltaSmall
	if past != nil {
		s = past.small
	}
	var err error
	read := func(t engine.Tensor) []float32 {
		out := make([]float32, t.Len())
		err = cmp.Or(err, ops.Download(out, t).Wait())
		return out
	}
	if s.conv == nil {
		s = deltaSmall{read(l.Conv), read(l.A), read(l.Bias)}
	}
	qkv, decay, rate := read(x.qkv), read(x.decay), read(x.rate)
	if err != nil {
		return err
	}
	b := x.qkv.Dim(0)
	out := make([]float32, x.o.Len())
	for i := range b {
		from := past
		if from == nil {
			from = &recurrence{}
		}
		from.small = s
		part := func(v []float32) []float32 { return v[i*len(v)/b : (i+1)*len(v)/b] }
		d.run(from, part(out), part(qkv), part(decay), part(rate))
	}
	ops.Upload(x.o, out)
	o := heads(x.o, d.heads)
	ops.RMSNorm(o, o, l.Norm, c.Eps)
	ops.ActivateMul(x.o, x.gate, x.o, engine.SiLU)
	return nil
}

// run continues r by tokens whose rows of queries, keys and values are qkv [L, C] and whose rows of decay and rate are
// [L, heads], and writes the results to o [L, heads*values]. For every token and head, in float32,
//
//	S = exp(-exp(A) softplus(decay + bias)) S,  S = S + k (sigmoid(rate) (v - S'k))',  o = S'q
//
// where q, k, v are what the convolution and SiLU make of qkv, q and k of length 1, q divided by sqrt(keys)
// (arXiv:2412.06464, eq. 10; ComfyUI comfy/text_encoders/qwen35.py).
func (d delta) run(r *recurrence, o, qkv, decay, rate []float32) {
	keys, values := d.keyHeads*d.keys, d.heads*d.values
	c, l := 2*keys+values, len(decay)/d.heads
	if r.state == nil {
		r.state, r.inputs = make([]float32, d.heads*d.keys*d.values), make([]float32, (d.taps-1)*c)
	}
	mixed := d.convolved(r, qkv, c)
	for t := range l {
		row := mixed[t*c:]
		for h := range 2 * d.keyHeads {
			unit(row[h*d.keys:][:d.keys])
		}
		scale := float32(1 / math.Sqrt(float64(d.keys)))
		for i := range row[:keys] {
			row[i] *= scale
		}
	}
	head := func(n int) {
		a, at := -math.Exp(float64(r.small.a[n])), n/(d.heads/d.keyHeads)*d.keys
		state := r.state[n*d.keys*d.values:][:d.keys*d.values]
		change := make([]float32, d.values)
		for t := range l {
			row := mixed[t*c : (t+1)*c]
			q, k, v := row[at:][:d.keys], row[keys+at:][:d.keys], row[2*keys+n*d.values:][:d.values]
			keep := math.Exp(a * softplus(float64(decay[t*d.heads+n]+r.small.bias[n])))
			by := 1 / (1 + math.Exp(-float64(rate[t*d.heads+n])))
			step(o[t*values+n*d.values:][:d.values], state, change, q, k, v, float32(keep), float32(by))
		}
	}
	var all sync.WaitGroup
	share := min(d.heads, runtime.GOMAXPROCS(0))
	for i := range share {
		all.Go(func() {
			for n := i; n < d.heads; n += share {
				head(n)
			}
		})
	}
	all.Wait()
}

// step is one token of one head. It reads and writes the state as few times as it can, which is what takes the time.
func step(o, state, change, q, k, v []float32, keep, by float32) {
	clear(change)
	for i, ki := range k {
		row := state[i*len(change):][:len(change)]
		for j, s := range row {
			change[j] += ki * s
		}
	}
	for j := range change {
		change[j], o[j] = (v[j]-keep*change[j])*by, 0
	}
	for i, ki := range k {
		row, qi := state[i*len(change):][:len(change)], q[i]
		sum := o[:len(row)]
		for j, d := range change[:len(row)] {
			s := row[j]*keep + ki*d
			row[j] = s
			sum[j] += qi * s
		}
	}
}

// convolved returns SiLU of the causal convolution of every column of qkv [L, C], before which r.inputs came, and moves
// those on.
func (d delta) convolved(r *recurrence, qkv []float32, c int) []float32 {
	all := append(r.inputs, qkv...)
	out := make([]float32, len(qkv))
	for i := range out {
		ch, sum := i%c, float32(0)
		for j := range d.taps {
			sum += r.small.conv[ch*d.taps+j] * all[i+j*c]
		}
		out[i] = sum / (1 + float32(math.Exp(-float64(sum))))
	}
	r.inputs = append([]float32(nil), all[len(qkv):]...)
	return out
}

// unit makes a vector one of length 1.
func unit(v []float32) {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	by := float32(max(math.Sqrt(sum), 1e-12))
	for i := range v {
		v[i] /= by
	}
}

// softplus returns log(1 + exp(x)), as torch's.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}
