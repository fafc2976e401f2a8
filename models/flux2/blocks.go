package flux2

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
		QKV: []*engine.Weight{w.QKV}, Norm: layers.RMS(w.Query, w.Key, eps), Out: w.Proj,
		Gate: w.Gate, Up: w.Up, Down: w.Down,
	}
}

// single: x += gate * linear2([attention(norm(x)), silu(a) * b]) with a and b of norm(x); both halves are written into
// one buffer, so nothing is joined.
func (m *Model) single(env dit.Env, i int, s *dit.State) {
	w, l := &m.Net.Single[i-m.cfg.Depth], s.Wide.Len()
	t := layers.OneStream(env, i, s, &layers.Side{Out: w.Down})
	t.Norm(env, 0, eps)
	own, f := w.QKV.N()/3, w.Up.N() // E and F, or the heads and columns of this rank
	qkv := layers.Scratch(env, s.X, s.B, l, 3*own)
	both := layers.Scratch(env, s.X, s.B, l, own+f)
	mark, up := env.Arena.Mark(), both.Slice(2, own, own+f)
	gate := layers.Scratch(env, s.X, s.B, l, f)
	whole := layers.Gathered(env, t.H, t.Of)
	env.Ops.Linear(qkv, whole, w.QKV, engine.Epilogue{})
	env.Ops.Linear(gate, whole, w.Gate, engine.Epilogue{})
	env.Ops.Linear(up, whole, w.Up, engine.Epilogue{})
	env.Ops.ActivateMul(up, gate, up, engine.SiLU)
	env.Arena.Release(mark)
	n := layers.RMS(w.Query, w.Key, eps)
	layers.JointAttention(env, i, s, qkv, both.Slice(2, 0, own), m.Spec().HeadDim, n, n)
	t.AddOut(env, both)
}
