package auraflow

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i on the rows of s: x += gate2 * mlp(norm2(x + gate1 * out(attention(norm1(x))))), on both streams
// with one attention over both, or on one.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	image := s.M.Image[i].Index(0, s.Step)
	var streams []layers.Stream[side]
	var w side
	if i < m.cfg.Double {
		both := &m.Net.Double[i]
		w = side{attention(both.Image), both.ImageMLP}
		streams = layers.Streams(env, s,
			layers.Side[side]{W: side{both.Text, both.TextMLP}, Mod: s.M.Text[i].Index(0, s.Step)},
			layers.Side[side]{W: w, Mod: image})
	} else {
		one := &m.Net.Single[i-m.cfg.Double]
		w = side{one.Attn, one.MLP}
		streams = append(streams, layers.OneStream(env, s, layers.Side[side]{W: w, Mod: image}))
	}
	beside := layers.Scratch(env, s.X, s.B, s.Rows.Len(), m.cfg.Hidden) // the stream with the attention's result
	if s.Rows.Len() > 0 {
		env.Ops.Copy(beside, s.X)
	}
	qkv := layers.Projections(env, s, streams, w, eps, []func(side) *engine.Weight{
		func(w side) *engine.Weight { return w.Q },
		func(w side) *engine.Weight { return w.K },
		func(w side) *engine.Weight { return w.V },
	})
	attended, n := layers.Scratch(env, s.X, s.B, s.Wide.Len(), w.Q.N()), engine.QKNorm{Kind: engine.LayerNorm, Eps: eps}
	layers.JointAttention(env, i, s, qkv, attended, m.Spec().HeadDim, n, n)
	at := 0 // rows of X
	for _, t := range streams {
		x := t
		x.X = beside.Slice(1, at, at+t.X.Dim(1))
		layers.RowParts(env, x.X, attended.Slice(1, t.To.Start, t.To.End),
			t.Weights(2, func(w side) *engine.Weight { return w.Out }), t.Of)
		x.Norm(env, 3, eps)
		t.GatedMLP(env, 5, func(w side) (gate, up, down *engine.Weight) { return w.Gate, w.Up, w.Down })
		at += t.X.Dim(1)
	}
	env.Arena.Release(mark)
}
