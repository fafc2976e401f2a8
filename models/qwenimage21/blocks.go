package qwenimage21

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i on the image rows of s.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	w := &m.Net.Blocks[i]
	norm := layers.RMS(w.Query, w.Key, eps)
	m.run(env, w, s.X, s.M.Image[i].Index(0, s.Step), s.Wide, func(q, k, v, out engine.Tensor) {
		env.Attend(dit.Attention{
			Block: i, Q: q, K: k, V: v, TextNorm: norm, ImageNorm: norm, RoPE: s.RoPE, Rows: s.Wide, ImageOnly: true,
			Preface: s.P.CrossKV[i], Out: out,
		})
	})
}

// PrepareBlock moves the preface through block i and keeps its keys and values. Every rank computes all of its rows,
// with the heads that it holds.
func (m *Model) PrepareBlock(env dit.Env, p *dit.Prepared, i int) {
	if !m.Held.Has(i) || p.Lt == 0 {
		return
	}
	w := &m.Net.Blocks[i]
	all := dit.Rows{Text: dit.Range{End: p.Lt}}
	m.run(env, w, p.Text, p.Source, all, func(q, k, v, out engine.Tensor) {
		keys, values := p.CrossKV[i].Index(2, 0), p.CrossKV[i].Index(2, 1)
		env.Ops.QKNormRoPE(q, keys, values, q, k, v, layers.RMS(w.Query, w.Key, eps), p.Tables(env, all))
		attendBefore(env, m.Spec(), &p.Entries[0], q, keys, values, out)
	})
}

// run computes x += gate1 * out(attention(norm(x) * (1 + scale1))), then x += gate2 * down(silu(gate(h)) * up(h)) with
// h = norm(x) * (1 + scale2), for the rows `of`. mod [n, 4E] is (scale1, gate1, scale2, gate2). attend reads queries,
// keys and values [B, L, H, D], which it may overwrite, and writes out.
func (m *Model) run(env dit.Env, w *block, x, mod engine.Tensor, of dit.Rows,
	attend func(q, k, v, out engine.Tensor),
) {
	mark, e, d := env.Arena.Mark(), x.Dim(2), m.Spec().HeadDim
	row := func(n int) engine.Tensor { return layers.Scratch(env, x, x.Dim(0), of.Len(), n) }
	h := layers.Scratch(env, x, x.Shape()...)
	project := func(scale int, outputs []engine.Tensor, by ...*engine.Weight) {
		layers.AdaLN(env, h, x, engine.Tensor{}, layers.Chunk(mod, e, scale), eps)
		mark := env.Arena.Mark()
		whole := layers.Gathered(env, h, of)
		for i, w := range by {
			env.Ops.Linear(outputs[i], whole, w, engine.Epilogue{})
		}
		env.Arena.Release(mark)
	}
	half := env.Arena.Mark()
	q, k, v, out := row(w.Q.N()), row(w.K.N()), row(w.V.N()), row(w.Q.N())
	project(0, []engine.Tensor{q, k, v}, w.Q, w.K, w.V)
	attend(layers.Heads(q, d), layers.Heads(k, d), layers.Heads(v, d), layers.Heads(out, d))
	layers.RowLinear(env, x, out, w.Out, layers.Chunk(mod, e, 1), of)
	env.Arena.Release(half)
	both, f := row(w.GateUp.N()), w.Down.K()
	project(2, []engine.Tensor{both}, w.GateUp)
	hidden := both.Slice(2, f, 2*f)
	env.Ops.ActivateMul(hidden, both.Slice(2, 0, f), hidden, engine.SiLU)
	layers.RowLinear(env, x, hidden, w.Down, layers.Chunk(mod, e, 3), of)
	env.Arena.Release(mark)
}

// attendBefore lets every row of the preface attend to the rows before it, and those of a reference also to all of
// their own: q, k, v, o [n, L, H, D].
func attendBefore(env dit.Env, spec *dit.Spec, e *dit.Entry, q, k, v, o engine.Tensor) {
	mark, at := env.Arena.Mark(), 0
	var part, lse, lse2 engine.Tensor
	if n, text := q.Dim(0), e.Context.Rows; len(e.References) > 0 { // enough for all slots, so that it can be forecast
		part = layers.Scratch(env, q, n, text, q.Dim(2), q.Dim(3))
		lse = env.Arena.Alloc(engine.F32, n, q.Dim(2), text)
		lse2 = env.Arena.Alloc(engine.F32, n, q.Dim(2), text)
	}
	for _, r := range runsOf(spec, e) {
		start, end := at, at+r.rows
		at = end
		mine := func(t engine.Tensor) engine.Tensor { return t.Slice(1, start, end) }
		if r.picture() {
			env.Ops.Attention(mine(o), mine(q), k.Slice(1, 0, end), v.Slice(1, 0, end), engine.AttentionArgs{})
			continue
		}
		if start == 0 {
			env.Ops.Attention(mine(o), mine(q), mine(k), mine(v), engine.AttentionArgs{Causal: true})
			continue
		}
		before, sums, sums2 := part.Slice(1, 0, r.rows), lse.Slice(2, 0, r.rows), lse2.Slice(2, 0, r.rows)
		env.Ops.Attention(mine(o), mine(q), mine(k), mine(v), engine.AttentionArgs{Causal: true, LSE: sums})
		env.Ops.Attention(before, mine(q), k.Slice(1, 0, start), v.Slice(1, 0, start), engine.AttentionArgs{LSE: sums2})
		env.Ops.MergeAttention(mine(o), sums, before, sums2)
	}
	env.Arena.Release(mark)
}
