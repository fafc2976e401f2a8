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

// double is a block of two streams.
func (m *Model) double(env dit.Env, i int, s *dit.State) {
	w := &m.Net.Double[i]
	layers.Double[*stream]{
		D: m.Spec().HeadDim, Eps: eps,
		QKV:  []func(*stream) *engine.Weight{func(w *stream) *engine.Weight { return w.QKV }},
		Out:  func(w *stream) *engine.Weight { return w.Proj },
		Norm: func(w *stream) engine.QKNorm { return layers.RMS(w.Query, w.Key, eps) },
		MLP: func(t layers.Stream[*stream]) {
			t.MLP(env, 5, engine.GELUTanh, func(w *stream) (up, down *engine.Weight) { return w.Up, w.Down })
		},
	}.Run(env, i, s,
		layers.Side[*stream]{W: &w.Txt, Mod: s.M.Text[i].Index(0, s.Step)},
		layers.Side[*stream]{W: &w.Img, Mod: s.M.Image[i].Index(0, s.Step)})
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
	n := layers.RMS(w.Query, w.Key, eps)
	layers.JointAttention(env, i, s, qkv, both.Slice(2, 0, own), m.Spec().HeadDim, n, n)
	layers.RowLinear(env, s.X, both, w.Down, layers.Chunk(mod, e, 2), s.Wide)
}
