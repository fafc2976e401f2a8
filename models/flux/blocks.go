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
		w := &m.Net.Double[i]
		layers.Double(env, i, s, m.Spec().HeadDim, eps, w.Txt.side(), w.Img.side())
	} else {
		m.single(env, i, s)
	}
	env.Arena.Release(mark)
}

// side is the stream's weights as blocks of two streams take them.
func (w *stream) side() *layers.Side {
	return &layers.Side{
		QKV: []*engine.Weight{w.QKV}, Norm: layers.RMS(w.Query, w.Key, eps), Out: w.Proj, Up: w.Up, Down: w.Down,
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
	n := layers.RMS(w.Query, w.Key, eps)
	layers.JointAttention(env, i, s, qkv, both.Slice(2, 0, own), m.Spec().HeadDim, n, n)
	layers.RowLinear(env, s.X, both, w.Down, layers.Chunk(mod, e, 2), s.Wide)
}
