package qwenimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// side is one stream of a block during a call.
type side struct {
	w    imageAttention
	mlp  mlp
	mod  engine.Tensor // [n, 6E]
	x, h engine.Tensor // its rows of X, and scratch for as many
	of   dit.Rows      // the rows that products see
	to   dit.Range     // those in the joint buffers
}

// Block runs block i on the rows of s: x += gate1 * out(attention(norm1(x))), x += gate2 * mlp(norm2(x)) on both
// streams with one attention over both.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	w, lt, l, e, own := &m.Net.Blocks[i], s.Wide.Text.Len(), s.Wide.Len(), m.cfg.Hidden, s.Rows.Text.Len()
	h := layers.Scratch(env, s.X, s.B, s.Rows.Len(), e)
	var sides []side
	if lt > 0 {
		sides = append(sides, side{
			imageAttention(w.Text), w.TextMLP, s.M.Text[i].Index(0, s.Step), s.TextRows(), h.Slice(1, 0, own),
			s.Wide.TextOnly(),
			dit.Range{End: lt},
		})
	}
	if l > lt {
		sides = append(sides, side{
			w.Image, w.ImageMLP, s.M.Image[i].Index(0, s.Step), s.ImageRows(), h.Slice(1, own, s.Rows.Len()),
			s.Wide.ImageOnly(),
			dit.Range{Start: lt, End: l},
		})
	}
	var attended engine.Tensor
	if env.Half != dit.MLPHalf {
		attended = m.attend(env, i, s, sides)
	}
	for _, t := range sides {
		if env.Half != dit.MLPHalf {
			layers.RowLinear(env, t.x, attended.Slice(1, t.to.Start, t.to.End), t.w.Out, layers.Chunk(t.mod, e, 2), t.of)
		}
		if env.Half != dit.AttentionHalf {
			layers.AdaLN(env, t.h, t.x, layers.Chunk(t.mod, e, 3), layers.Chunk(t.mod, e, 4), eps)
			layers.ResidualMLP(env, t.x, t.h, t.mlp.Up, t.mlp.Down, layers.Chunk(t.mod, e, 5), t.of, engine.GELUTanh)
		}
	}
	env.Arena.Release(mark)
}

// attend is the joint attention of all sides: [B, L, heads * D] in the arena.
func (m *Model) attend(env dit.Env, i int, s *dit.State, sides []side) engine.Tensor {
	w, l, d, e := &m.Net.Blocks[i], s.Wide.Len(), m.Spec().HeadDim, m.cfg.Hidden
	n := w.Image.Q.N() // E, or the heads of this rank
	qkv := layers.Scratch(env, s.X, s.B, l, 3*n)
	for _, t := range sides {
		layers.AdaLN(env, t.h, t.x, layers.Chunk(t.mod, e, 0), layers.Chunk(t.mod, e, 1), eps)
		mark := env.Arena.Mark()
		whole := layers.Gathered(env, t.h, t.of)
		for part, w := range []*engine.Weight{t.w.Q, t.w.K, t.w.V} {
			env.Ops.Linear(qkv.Slice(1, t.to.Start, t.to.End).Slice(2, part*n, (part+1)*n), whole, w, engine.Epilogue{})
		}
		env.Arena.Release(mark)
	}
	out := layers.Scratch(env, s.X, s.B, l, n)
	q, k, v := layers.QKV(qkv, d)
	env.Attend(dit.Attention{
		Block: i, Q: q, K: k, V: v, TextNorm: imageAttention(w.Text).norm(), ImageNorm: w.Image.norm(),
		RoPE: s.RoPE, Rows: s.Wide, Out: layers.Heads(out, d),
	})
	return out
}

// norm is that of queries and keys of one stream.
func (a imageAttention) norm() engine.QKNorm {
	return engine.QKNorm{Kind: engine.RMSNorm, QScale: a.QueryNorm, KScale: a.KeyNorm, Eps: eps}
}
