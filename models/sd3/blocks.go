package sd3

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs joint block i on the rows of s: x += gate1 * proj(attention(norm1(x))), x += gate2 * mlp(norm2(x)) on both
// streams with one attention over both. The last block leaves its text rows as they were.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	b, own, all := &m.blocks[i], s.Rows.Text.Len(), s.Rows.Len()
	imageMod, textMod := s.M.Image[i].Index(0, s.Step), s.M.Text[i].Index(0, s.Step)
	h := layers.Scratch(env, s.X, s.B, all, m.cfg.Hidden)
	hText, hImage := h.Slice(1, 0, own), h.Slice(1, own, all)
	if env.Half != dit.MLPHalf {
		m.attentions(env, i, s, hText, hImage)
	}
	if env.Half != dit.AttentionHalf {
		if !b.last && s.Wide.Text.Len() > 0 {
			feedForward(env, s.TextRows(), hText, textMod, b.text.MLP, s.Wide.TextOnly())
		}
		if s.Wide.Image.Len() > 0 {
			feedForward(env, s.ImageRows(), hImage, imageMod, b.image.MLP, s.Wide.ImageOnly())
		}
	}
	env.Arena.Release(mark)
}

// attentions adds the joint attention to both streams, and that over image tokens alone of a dual block; hText and
// hImage are scratch.
func (m *Model) attentions(env dit.Env, i int, s *dit.State, hText, hImage engine.Tensor) {
	b, e, lt, l := &m.blocks[i], m.cfg.Hidden, s.Wide.Text.Len(), s.Wide.Len()
	imageMod, textMod := s.M.Image[i].Index(0, s.Step), s.M.Text[i].Index(0, s.Step)
	qkv := layers.Scratch(env, s.X, s.B, l, b.image.Attn.QKV.N())
	project(env, hText, qkv.Slice(1, 0, lt), s.TextRows(), textMod, 0, b.text.Attn.QKV, s.Wide.TextOnly())
	project(env, hImage, qkv.Slice(1, lt, l), s.ImageRows(), imageMod, 0, b.image.Attn.QKV, s.Wide.ImageOnly())
	attended := layers.Scratch(env, s.X, s.B, l, b.image.Attn.Proj.K())
	q, k, v := layers.QKV(qkv, headDim)
	env.Attend(dit.Attention{
		Block: i, Q: q, K: k, V: v, TextNorm: b.text.Attn.norm(), ImageNorm: b.image.Attn.norm(), Rows: s.Wide,
		Out: layers.Heads(attended, headDim),
	})
	var again engine.Tensor // both attentions of a dual block read X before either is added
	if b.second != nil {
		again = m.second(env, i, s, b.second, imageMod, hImage)
	}
	if !b.last && lt > 0 {
		layers.RowLinear(env, s.TextRows(), attended.Slice(1, 0, lt), b.text.Attn.Proj,
			layers.Chunk(textMod, e, 2), s.Wide.TextOnly())
	}
	if l > lt {
		x, of := s.ImageRows(), s.Wide.ImageOnly()
		layers.RowLinear(env, x, attended.Slice(1, lt, l), b.image.Attn.Proj, layers.Chunk(imageMod, e, 2), of)
		if b.second != nil {
			layers.RowLinear(env, x, again, b.second.Proj, layers.Chunk(imageMod, e, 8), of)
		}
	}
}

// project computes qkv of one stream from its normalised rows; part is the index of the shift in mod, the scale
// follows.
func project(env dit.Env, h, qkv, x, mod engine.Tensor, part int, w *engine.Weight, of dit.Rows) {
	if of.Len() == 0 {
		return
	}
	e := x.Dim(2)
	layers.AdaLN(env, h, x, layers.Chunk(mod, e, part), layers.Chunk(mod, e, part+1), eps)
	layers.ColumnLinear(env, qkv, h, w, of, engine.ActNone)
}

// second is the attention over image tokens alone of a dual block. It reads X before anything is added to it and
// returns the attended rows [B, li, E]; h is scratch.
func (m *Model) second(env dit.Env, i int, s *dit.State, w *attention, mod, h engine.Tensor) engine.Tensor {
	of := s.Wide.ImageOnly()
	li := of.Len()
	qkv := layers.Scratch(env, s.X, s.B, li, w.QKV.N())
	out := layers.Scratch(env, s.X, s.B, li, w.Proj.K())
	project(env, h, qkv, s.ImageRows(), mod, 6, w.QKV, of)
	q, k, v := layers.QKV(qkv, headDim)
	n := w.norm()
	env.Attend(dit.Attention{
		Block: i, Index: 1, Q: q, K: k, V: v, TextNorm: n, ImageNorm: n, Rows: of, ImageOnly: true,
		Out: layers.Heads(out, headDim),
	})
	return out
}

// feedForward adds the MLP to the rows x of one stream; h is scratch.
func feedForward(env dit.Env, x, h, mod engine.Tensor, w mlp, of dit.Rows) {
	e := x.Dim(2)
	layers.AdaLN(env, h, x, layers.Chunk(mod, e, 3), layers.Chunk(mod, e, 4), eps)
	layers.ResidualMLP(env, x, h, w.Up, w.Down, layers.Chunk(mod, e, 5), of, engine.GELUTanh)
}

// norm is the head normalisation of one stream.
func (a attention) norm() engine.QKNorm {
	if a.Norm == nil {
		return engine.QKNorm{}
	}
	return engine.QKNorm{Kind: engine.RMSNorm, QScale: a.Norm.Query, KScale: a.Norm.Key, Eps: eps}
}
