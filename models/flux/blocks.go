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

// side is one stream of a double block during a call.
type side struct {
	w   *stream
	mod engine.Tensor // [n, 6E]
	x   engine.Tensor // its rows of X
	at  dit.Range     // the same rows in buffers of X's rows
	of  dit.Rows      // the rows that products see
	to  dit.Range     // those in the joint buffers
}

// double: x += gate1 * proj(attention(norm1(x))), x += gate2 * mlp(norm2(x)) on both streams, with one attention over
// both.
func (m *Model) double(env dit.Env, i int, s *dit.State) {
	w, lt, l, e := &m.Net.Double[i], s.Wide.Text.Len(), s.Wide.Len(), m.cfg.Hidden
	own, all := s.Rows.Text.Len(), s.Rows.Len()
	var sides []side
	if lt > 0 {
		sides = append(sides, side{
			&w.Txt, s.M.Text[i].Index(0, s.Step), s.TextRows(),
			dit.Range{End: own},
			s.Wide.TextOnly(),
			dit.Range{End: lt},
		})
	}
	if l > lt {
		sides = append(sides, side{
			&w.Img, s.M.Image[i].Index(0, s.Step), s.ImageRows(),
			dit.Range{Start: own, End: all},
			s.Wide.ImageOnly(),
			dit.Range{Start: lt, End: l},
		})
	}
	h := layers.Scratch(env, s.X, s.B, all, e)
	var attended engine.Tensor
	if env.Half != dit.MLPHalf {
		qkv := layers.Scratch(env, s.X, s.B, l, w.Img.QKV.N())
		for _, t := range sides {
			rows := h.Slice(1, t.at.Start, t.at.End)
			layers.AdaLN(env, rows, t.x, layers.Chunk(t.mod, e, 0), layers.Chunk(t.mod, e, 1), eps)
			layers.ColumnLinear(env, qkv.Slice(1, t.to.Start, t.to.End), rows, t.w.QKV, t.of, engine.ActNone)
		}
		attended = layers.Scratch(env, s.X, s.B, l, w.Img.Proj.K())
		m.attend(env, i, s, qkv, attended, norm(w.Txt.QueryScale, w.Txt.KeyScale), norm(w.Img.QueryScale, w.Img.KeyScale))
	}
	for _, t := range sides {
		if env.Half != dit.MLPHalf {
			layers.RowLinear(env, t.x, attended.Slice(1, t.to.Start, t.to.End), t.w.Proj, layers.Chunk(t.mod, e, 2), t.of)
		}
		if env.Half == dit.AttentionHalf {
			continue
		}
		rows := h.Slice(1, t.at.Start, t.at.End)
		layers.AdaLN(env, rows, t.x, layers.Chunk(t.mod, e, 3), layers.Chunk(t.mod, e, 4), eps)
		layers.ResidualMLP(env, t.x, rows, t.w.Up, t.w.Down, layers.Chunk(t.mod, e, 5), t.of, engine.GELUTanh)
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
	n := norm(w.QueryScale, w.KeyScale)
	m.attend(env, i, s, qkv, both.Slice(2, 0, own), n, n)
	layers.RowLinear(env, s.X, both, w.Down, layers.Chunk(mod, e, 2), s.Wide)
}

// attend runs joint attention on fused projections qkv [B, L, 3E] and writes out [B, L, E].
func (m *Model) attend(env dit.Env, i int, s *dit.State, qkv, out engine.Tensor, text, image engine.QKNorm) {
	d := m.Spec().HeadDim
	q, k, v := layers.QKV(qkv, d)
	env.Attend(dit.Attention{
		Block: i, Q: q, K: k, V: v, TextNorm: text, ImageNorm: image, RoPE: s.RoPE, Rows: s.Wide, Out: layers.Heads(out, d),
	})
}

func norm(q, k engine.Tensor) engine.QKNorm {
	return engine.QKNorm{Kind: engine.RMSNorm, QScale: q, KScale: k, Eps: eps}
}
