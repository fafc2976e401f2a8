package hunyuan

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// eps is the epsilon of all norms of HunyuanDiT.
const eps = 1e-6

// Model is a HunyuanDiT model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Modulate computes the vector of every timestep and entry (time + extra). From it come Image [S, n, 2E] of the blocks,
// (shift, scale) of the first norm with the norm's own bias and weight folded in, and Head [S, n, 2E] (shift, scale).
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	return m.Modulation(env, p.N, family.Conditioning{
		Timesteps: timesteps, In: m.Net.Time.In, Out: m.Net.Time.Out, Add: p.Vector, Head: m.Net.Final.Mod,
	})
}

// ModulateBlock computes shift and scale of block i.
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	b, vec, e := &m.Net.Blocks[i], out.Vector, m.cfg.Hidden
	s, n := vec.Dim(0), vec.Dim(1)
	out.Image[i] = env.Arena.Alloc(engine.F32, s, n, 2*e)
	shift, scale := out.Image[i].Slice(2, 0, e), out.Image[i].Slice(2, e, 2*e)
	env.Ops.Linear(shift, vec, b.Shift, engine.Epilogue{})
	env.Ops.Add(shift, shift, b.Norm1.Bias.Unsqueeze(0).Unsqueeze(0))
	env.Ops.Copy(scale, b.Norm1.Scale.Unsqueeze(0).Unsqueeze(0).Broadcast(0, s).Broadcast(1, n))
}

// Block runs block i: x = linear(norm([x, skip])) in blocks with a skip input, x += attention(norm1(x) shifted), x +=
// cross-attention(norm3(x)), x += mlp(norm2(x)).
func (m *Model) Block(env dit.Env, i int, s *dit.State, skip engine.Tensor) {
	mark := env.Arena.Mark()
	b, x := &m.Net.Blocks[i], s.X
	b.join(env, x, skip)
	h := layers.Scratch(env, x, s.B, s.Rows.Len(), m.cfg.Hidden)
	m.attentions(env, i, s, h)
	b.Norm2.apply(env, h, x)
	b.MLP.Add(env, x, h, engine.Tensor{}, s.Wide)
	env.Arena.Release(mark)
}

// join combines x with the skip input, in blocks that have one.
func (b *block) join(env dit.Env, x, skip engine.Tensor) {
	rows, e := x.Dim(1), x.Dim(2)
	if b.Skip == nil || rows == 0 {
		return
	}
	mark := env.Arena.Mark()
	both := layers.Scratch(env, x, x.Dim(0), rows, 2*e)
	env.Ops.Copy(both.Slice(2, 0, e), x)
	env.Ops.Copy(both.Slice(2, e, 2*e), skip)
	env.Ops.LayerNorm(both, both, b.Skip.Weight, b.Skip.Bias, eps)
	env.Ops.Linear(x, both, b.Skip.Linear, engine.Epilogue{})
	env.Arena.Release(mark)
}

// attentions adds self-attention over the image and cross-attention to the text; h is scratch.
func (m *Model) attentions(env dit.Env, i int, s *dit.State, h engine.Tensor) {
	b, x, e, d := &m.Net.Blocks[i], s.X, m.cfg.Hidden, m.Spec().HeadDim
	mod, n := s.M.Image[i].Index(0, s.Step), b.Attn.Norm.both()
	layers.AdaLN(env, h, x, layers.Chunk(mod, e, 0), layers.Chunk(mod, e, 1), eps)
	attended, free := layers.Attended(env, dit.Attention{
		Block: i, TextNorm: n, ImageNorm: n, RoPE: s.RoPE, Rows: s.Wide, ImageOnly: true,
	}, h, b.Attn.QKV, d, 1)
	layers.RowLinear(env, x, attended, b.Attn.Proj, engine.Tensor{}, s.Wide)

	b.Norm3.apply(env, h, x)
	query := free.Slice(2, 0, b.Cross.Query.N())
	layers.ColumnLinear(env, query, h, b.Cross.Query, s.Wide, engine.ActNone)
	heads := layers.Heads(query, d)
	// Passed as keys: the operation accepts keys without queries, and rotates queries no differently.
	env.Ops.QKNormRoPE(engine.Tensor{}, heads, engine.Tensor{}, engine.Tensor{}, heads, engine.Tensor{},
		b.Cross.Norm.query(), s.RoPE)
	layers.CrossAttend(env, layers.Heads(attended, d), heads, s.P.CrossKV[i], nil)
	layers.RowLinear(env, x, attended, b.Cross.Proj, engine.Tensor{}, s.Wide)
}

// apply normalizes the rows of x [B, L, E] into h.
func (n norm) apply(env dit.Env, h, x engine.Tensor) {
	if x.Dim(1) > 0 {
		env.Ops.LayerNorm(h, x, n.Weight, n.Bias, eps)
	}
}

// both returns the norm of queries and keys.
func (h headNorm) both() engine.QKNorm {
	return engine.QKNorm{
		Kind: engine.LayerNorm, QScale: h.QueryWeight, QBias: h.QueryBias, KScale: h.KeyWeight,
		KBias: h.KeyBias, Eps: eps,
	}
}

// query returns the norm of queries for a call that passes them as keys.
func (h headNorm) query() engine.QKNorm {
	return engine.QKNorm{Kind: engine.LayerNorm, KScale: h.QueryWeight, KBias: h.QueryBias, Eps: eps}
}
