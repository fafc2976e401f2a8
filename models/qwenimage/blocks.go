package qwenimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// side is the weights of one stream, in a form that both share.
type side struct {
	attn *imageAttention
	mlp  *mlp
}

// Block runs block i on the rows of s: x += gate1 * out(attention(norm1(x))), x += gate2 * mlp(norm2(x)) on both
// streams with one attention over both.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, w := env.Arena.Mark(), &m.Net.Blocks[i]
	streams := layers.Streams(env, s,
		layers.Side[side]{W: side{(*imageAttention)(&w.Text), &w.TextMLP}, Mod: s.M.Text[i].Index(0, s.Step)},
		layers.Side[side]{W: side{&w.Image, &w.ImageMLP}, Mod: s.M.Image[i].Index(0, s.Step)})
	var attended engine.Tensor
	if env.Half != dit.MLPHalf {
		attended = m.attend(env, i, s, streams)
	}
	for _, t := range streams {
		if env.Half != dit.MLPHalf {
			layers.RowParts(env, t.X, attended.Slice(1, t.To.Start, t.To.End),
				t.Weights(2, func(w side) *engine.Weight { return w.attn.Out }), t.Of)
		}
		if env.Half == dit.AttentionHalf {
			continue
		}
		t.Norm(env, 3, eps)
		t.MLP(env, 5, engine.GELUTanh, func(w side) (up, down *engine.Weight) { return w.mlp.Up, w.mlp.Down })
	}
	env.Arena.Release(mark)
}

// attend is the joint attention of all streams: [B, L, heads * D] in the arena.
func (m *Model) attend(env dit.Env, i int, s *dit.State, streams []layers.Stream[side]) engine.Tensor {
	w, l, d := &m.Net.Blocks[i], s.Wide.Len(), m.Spec().HeadDim
	n := w.Image.Q.N() // E, or the heads of this rank
	qkv := layers.Scratch(env, s.X, s.B, l, 3*n)
	for _, t := range streams {
		t.Norm(env, 0, eps)
		mark := env.Arena.Mark()
		whole, to := layers.Gathered(env, t.H, t.Of), qkv.Slice(1, t.To.Start, t.To.End)
		for k := range 3 {
			t.Linear(env, to.Slice(2, k*n, (k+1)*n), whole, func(w side) *engine.Weight {
				return [3]*engine.Weight{w.attn.Q, w.attn.K, w.attn.V}[k]
			})
		}
		env.Arena.Release(mark)
	}
	out := layers.Scratch(env, s.X, s.B, l, n)
	q, k, v := layers.QKV(qkv, d)
	env.Attend(dit.Attention{
		Block: i, Q: q, K: k, V: v, TextNorm: (*imageAttention)(&w.Text).norm(), ImageNorm: w.Image.norm(),
		References: s.Wide.Text.Len() - layers.OwnText(s, s.Wide), RoPE: s.RoPE, Rows: s.Wide, Out: layers.Heads(out, d),
	})
	return out
}

// norm is that of queries and keys of one stream.
func (a *imageAttention) norm() engine.QKNorm {
	return engine.QKNorm{Kind: engine.RMSNorm, QScale: a.QueryNorm, KScale: a.KeyNorm, Eps: eps}
}
