package auraflow

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i on the rows of s: x += gate2 * mlp(norm2(x + gate1 * out(attention(norm1(x))))). The first blocks
// have two streams with one attention over both, the others have one stream.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	var streams []layers.Stream
	var w *layers.Side
	if i < m.cfg.Double {
		both := &m.Net.Double[i]
		w = side(attention(both.Image), both.ImageMLP)
		streams = layers.Streams(env, i, s, side(both.Text, both.TextMLP), w)
	} else {
		one := &m.Net.Single[i-m.cfg.Double]
		w = side(one.Attn, one.MLP)
		streams = []layers.Stream{layers.OneStream(env, i, s, w)}
	}
	sum := layers.Scratch(env, s.X, s.B, s.Rows.Len(), m.cfg.Hidden) // X plus the attention's result
	if s.Rows.Len() > 0 {
		env.Ops.Copy(sum, s.X)
	}
	qkv := layers.Projections(env, s, streams, w, eps)
	attended := layers.Scratch(env, s.X, s.B, s.Wide.Len(), w.Out.K())
	layers.JointAttention(env, i, s, qkv, attended, m.Spec().HeadDim, w.Norm, w.Norm)
	at := 0 // rows of X
	for _, t := range streams {
		x := t
		x.X = sum.Slice(1, at, at+t.X.Dim(1))
		x.AddOut(env, attended.Slice(1, t.To.Start, t.To.End))
		x.Norm(env, 3, eps)
		t.AddMLP(env)
		at += t.X.Dim(1)
	}
	env.Arena.Release(mark)
}

// side returns a stream's weights as package layers takes them.
func side(w attention, m mlp) *layers.Side {
	return &layers.Side{
		QKV: []*engine.Weight{w.Q, w.K, w.V}, Norm: engine.QKNorm{Kind: engine.LayerNorm, Eps: eps}, Out: w.Out,
		Gate: m.Gate, Up: m.Up, Down: m.Down,
	}
}
