package flux

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs double or single block i on the rows of s.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	if i < m.cfg.Depth {
		m.double(env, i, s)
	} else {
		m.single(env, i, s)
	}
	env.Arena.Release(mark)
}

// double: x += gate1 * proj(attention(norm1(x))), x += gate2 * mlp(norm2(x)) on both streams, with one attention over
// both.
func (m *Model) double(env dit.Env, i int, s *dit.State) {
	w, l := &m.Net.Double[i], s.Wide.Len()
	streams := layers.Streams(env, s,
		layers.Side[*stream]{W: &w.Txt, Mod: s.M.Text[i].Index(0, s.Step)},
		layers.Side[*stream]{W: &w.Img, Mod: s.M.Image[i].Index(0, s.Step)})
	var attended engine.Tensor
	if env.Half != dit.MLPHalf {
		qkv := layers.Scratch(env, s.X, s.B, l, w.Img.QKV.N())
		for _, t := range streams {
			t.Norm(env, 0, eps)
			layers.ColumnParts(env, qkv.Slice(1, t.To.Start, t.To.End), t.H,
				t.Weights(2, func(w *stream) *engine.Weight { return w.QKV }), t.Of, engine.ActNone)
		}
		attended = layers.Scratch(env, s.X, s.B, l, w.Img.Proj.K())
		m.attend(env, i, s, qkv, attended, norm(w.Txt.Query, w.Txt.Key), norm(w.Img.Query, w.Img.Key))
	}
	for _, t := range streams {
		if env.Half != dit.MLPHalf {
			layers.RowParts(env, t.X, attended.Slice(1, t.To.Start, t.To.End),
				t.Weights(2, func(w *stream) *engine.Weight { return w.Proj }), t.Of)
		}
		if env.Half != dit.AttentionHalf {
			t.Norm(env, 3, eps)
			t.MLP(env, 5, engine.GELUTanh, func(w *stream) (up, down *engine.Weight) { return w.Up, w.Down })
		}
	}
}

// single: x += gate * linear2([attention(norm(x)), gelu(mlp(norm(x)))]); both halves are written into one buffer, so
// nothing is joined.
func (m *Model) single(env dit.Env, i int, s *dit.State) {
	w, l, e := &m.Net.Single[i-m.cfg.Depth], s.Wide.Len(), m.cfg.Hidden
	mod := s.M.Image[i].Index(0, s.Step)
	h := layers.Scratch(env, s.X, s.B, s.Rows.Len(), e)
	layers.AdaLN(env, h, s.X, layers.Chunk(mod, e, 0), layers.Chunk(mod, e, 1), eps)
	qkv := layers.Scratch(env, s.X, s.B, l, w.QKV.N())
	both := layers.Scratch(env, s.X, s.B, l, w.Down.K())
	own := w.QKV.N() / 3 // E, or the heads of this rank
	mark := env.Arena.Mark()
	whole := layers.Gathered(env, h, s.Wide)
	env.Ops.Linear(qkv, whole, w.QKV, engine.Epilogue{})
	env.Ops.Linear(both.Slice(2, own, own+w.Up.N()), whole, w.Up, engine.Epilogue{Act: engine.GELUTanh})
	env.Arena.Release(mark)
	n := norm(w.Query, w.Key)
	m.attend(env, i, s, qkv, both.Slice(2, 0, own), n, n)
	layers.RowLinear(env, s.X, both, w.Down, layers.Chunk(mod, e, 2), s.Wide)
}

// attend runs joint attention on fused projections qkv [B, L, 3E] and writes out [B, L, E].
func (m *Model) attend(env dit.Env, i int, s *dit.State, qkv, out engine.Tensor, text, image engine.QKNorm) {
	d := m.Spec().HeadDim
	q, k, v := layers.QKV(qkv, d)
	env.Attend(dit.Attention{
		Block: i, Q: q, K: k, V: v, TextNorm: text, ImageNorm: image,
		References: s.Wide.Text.Len() - layers.OwnText(s, s.Wide), RoPE: s.RoPE, Rows: s.Wide, Out: layers.Heads(out, d),
	})
}

func norm(q, k engine.Tensor) engine.QKNorm {
	return engine.QKNorm{Kind: engine.RMSNorm, QScale: q, KScale: k, Eps: eps}
}
