package qwenimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// stream is what exchanges treat as one during a call: text with references, or the picture.
type stream struct {
	x, h  engine.Tensor // its rows of X, and scratch for as many
	of    dit.Rows      // the rows that products see
	to    dit.Range     // those in the joint buffers
	parts []part
}

// part is some rows of a stream with weights and modulations of their own.
type part struct {
	w          *imageAttention
	mlp        *mlp
	mod        engine.Tensor // [n, 6E]
	wide, kept dit.Range     // its rows among those that products see, and among those of X
}

// streams cuts the rows of a call.
func (m *Model) streams(env dit.Env, i int, s *dit.State) (out []stream) {
	w, n, lt, rows := &m.Net.Blocks[i], s.P.N, s.Wide.Text.Len(), s.Rows.Text.Len()
	h := layers.Scratch(env, s.X, s.B, s.Rows.Len(), m.cfg.Hidden)
	image, text := s.M.Image[i].Index(0, s.Step), s.M.Text[i].Index(0, s.Step)
	if lt > 0 {
		own := s.P.Entries[0].Context.Rows // what follows are references
		wide, kept := behind(s.Wide.Text, own), behind(s.Rows.Text, own)
		t := stream{x: s.TextRows(), h: h.Slice(1, 0, rows), of: s.Wide.TextOnly(), to: dit.Range{End: lt}}
		if wide > 0 {
			t.parts = append(t.parts, part{
				(*imageAttention)(&w.Text), &w.TextMLP, text.Slice(0, 0, n), dit.Range{End: wide}, dit.Range{End: kept},
			})
		}
		if wide < lt {
			mod := image.Slice(0, image.Dim(0)-n, image.Dim(0))
			t.parts = append(t.parts, part{
				&w.Image, &w.ImageMLP, mod, dit.Range{Start: wide, End: lt}, dit.Range{Start: kept, End: rows},
			})
		}
		out = append(out, t)
	}
	if li := s.Wide.Image.Len(); li > 0 {
		x := s.ImageRows()
		out = append(out, stream{
			x,
			h.Slice(1, rows, s.Rows.Len()),
			s.Wide.ImageOnly(),
			dit.Range{Start: lt, End: lt + li},
			[]part{{&w.Image, &w.ImageMLP, image.Slice(0, 0, n), dit.Range{End: li}, dit.Range{End: x.Dim(1)}}},
		})
	}
	return out
}

// behind is how many of the rows r lie before row own.
func behind(r dit.Range, own int) int { return max(0, min(own, r.End)-r.Start) }

// Block runs block i on the rows of s: x += gate1 * out(attention(norm1(x))), x += gate2 * mlp(norm2(x)) on both
// streams with one attention over both.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, e := env.Arena.Mark(), m.cfg.Hidden
	streams := m.streams(env, i, s)
	var attended engine.Tensor
	if env.Half != dit.MLPHalf {
		attended = m.attend(env, i, s, streams)
	}
	for _, t := range streams {
		if env.Half != dit.MLPHalf {
			layers.RowParts(env, t.x, attended.Slice(1, t.to.Start, t.to.End),
				t.weights(e, 2, func(p *part) *engine.Weight { return p.w.Out }), t.of)
		}
		if env.Half == dit.AttentionHalf {
			continue
		}
		t.norm(env, e, 3)
		inner := env.Arena.Mark()
		hidden := layers.Scratch(env, t.h, s.B, t.of.Len(), m.Net.Blocks[i].ImageMLP.Up.N())
		layers.ColumnParts(env, hidden, t.h, t.weights(e, 5, func(p *part) *engine.Weight { return p.mlp.Up }), t.of,
			engine.GELUTanh)
		layers.RowParts(env, t.x, hidden, t.weights(e, 5, func(p *part) *engine.Weight { return p.mlp.Down }), t.of)
		env.Arena.Release(inner)
	}
	env.Arena.Release(mark)
}

// norm writes the normalised rows of X to h; chunk and the one behind it are shift and scale.
func (t *stream) norm(env dit.Env, e, chunk int) {
	for _, p := range t.parts {
		layers.AdaLN(env, t.h.Slice(1, p.kept.Start, p.kept.End), t.x.Slice(1, p.kept.Start, p.kept.End),
			layers.Chunk(p.mod, e, chunk), layers.Chunk(p.mod, e, chunk+1), eps)
	}
}

// weights picks a weight of every part, with a chunk of its modulation as the gate.
func (t *stream) weights(e, gate int, pick func(*part) *engine.Weight) (out []layers.Part) {
	for i := range t.parts {
		p := &t.parts[i]
		out = append(out, layers.Part{Weight: pick(p), Gate: layers.Chunk(p.mod, e, gate), Wide: p.wide, Kept: p.kept})
	}
	return out
}

// attend is the joint attention of all streams: [B, L, heads * D] in the arena.
func (m *Model) attend(env dit.Env, i int, s *dit.State, streams []stream) engine.Tensor {
	w, l, d := &m.Net.Blocks[i], s.Wide.Len(), m.Spec().HeadDim
	n := w.Image.Q.N() // E, or the heads of this rank
	qkv := layers.Scratch(env, s.X, s.B, l, 3*n)
	for _, t := range streams {
		t.norm(env, m.cfg.Hidden, 0)
		mark := env.Arena.Mark()
		whole := layers.Gathered(env, t.h, t.of)
		for _, p := range t.parts {
			rows := whole.Slice(1, p.wide.Start, p.wide.End)
			to := qkv.Slice(1, t.to.Start+p.wide.Start, t.to.Start+p.wide.End)
			for k, w := range []*engine.Weight{p.w.Q, p.w.K, p.w.V} {
				env.Ops.Linear(to.Slice(2, k*n, (k+1)*n), rows, w, engine.Epilogue{})
			}
		}
		env.Arena.Release(mark)
	}
	out := layers.Scratch(env, s.X, s.B, l, n)
	q, k, v := layers.QKV(qkv, d)
	own := s.P.Entries[0].Context.Rows
	env.Attend(dit.Attention{
		Block: i, Q: q, K: k, V: v, TextNorm: (*imageAttention)(&w.Text).norm(), ImageNorm: w.Image.norm(),
		References: s.Wide.Text.Len() - behind(s.Wide.Text, own), RoPE: s.RoPE, Rows: s.Wide, Out: layers.Heads(out, d),
	})
	return out
}

// norm is that of queries and keys of one stream.
func (a *imageAttention) norm() engine.QKNorm {
	return engine.QKNorm{Kind: engine.RMSNorm, QScale: a.QueryNorm, KScale: a.KeyNorm, Eps: eps}
}
