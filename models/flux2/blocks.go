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
			t.GatedMLP(env, 5, func(w *stream) (gate, up, down *engine.Weight) { return w.Gate, w.Up, w.Down })
		},
	}.Run(env, i, s,
		layers.Side[*stream]{W: &w.Txt, Mod: s.M.Text[i].Index(0, s.Step)},
		layers.Side[*stream]{W: &w.Img, Mod: s.M.Image[i].Index(0, s.Step)})
}

// single: x += gate * linear2([attention(norm(x)), silu(a) * b]) with a and b of norm(x); both halves are written into
// one buffer, so nothing is joined.
func (m *Model) single(env dit.Env, i int, s *dit.State) {
	w, l := &m.Net.Single[i-m.cfg.Depth], s.Wide.Len()
	t := layers.OneStream(env, s, layers.Side[*single]{W: w, Mod: s.M.Image[i].Index(0, s.Step)})
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
	layers.RowParts(env, t.X, both, t.Weights(2, func(w *single) *engine.Weight { return w.Down }), t.Of)
}
