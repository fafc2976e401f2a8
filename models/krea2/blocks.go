package krea2

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i on the rows of s: x += gate1 * out(attention(norm1(x)) * sigmoid(gate(norm1(x)))), then x +=
// gate2 * mlp(norm2(x)).
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, w := env.Arena.Mark(), &m.Net.Blocks[i]
	t := layers.OneStream(env, i, s, &layers.Side{Out: w.Attn.Out, Gate: w.MLP.Gate, Up: w.MLP.Up, Down: w.MLP.Down})
	m.attend(env, i, s, t)
	t.ScaledRMS(env, 3, 4, eps)
	t.AddMLP(env)
	env.Arena.Release(mark)
}

// attend runs the attention of block i on t.
func (m *Model) attend(env dit.Env, i int, s *dit.State, t layers.Stream) {
	mark, w, d := env.Arena.Mark(), &m.Net.Blocks[i].Attn, m.Spec().HeadDim
	t.ScaledRMS(env, 0, 1, eps)
	row := func(n int) engine.Tensor { return layers.Scratch(env, s.X, s.B, t.Of.Len(), n) }
	q, k, v, gate, out := row(w.Q.N()), row(w.K.N()), row(w.V.N()), row(w.Gate.N()), row(w.Q.N())
	inner := env.Arena.Mark()
	whole := layers.Gathered(env, t.H, t.Of)
	for _, p := range []struct {
		y engine.Tensor
		w *engine.Weight
	}{{q, w.Q}, {k, w.K}, {v, w.V}, {gate, w.Gate}} {
		env.Ops.Linear(p.y, whole, p.w, engine.Epilogue{})
	}
	env.Arena.Release(inner)
	n := layers.RMS(w.Query, w.Key, eps)
	env.Attend(dit.Attention{
		Block: i, Q: layers.Heads(q, d), K: layers.Heads(k, d), V: layers.Heads(v, d), TextNorm: n, ImageNorm: n,
		RoPE: s.RoPE, Rows: s.Wide, Out: layers.Heads(out, d),
	})
	env.Ops.ActivateMul(out, gate, out, engine.Sigmoid)
	t.AddOut(env, out)
	env.Arena.Release(mark)
}
