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
	text, image, second := m.Net.Blocks[i].view()
	w := image.side()
	if second != nil {
		w.Again = second.side()
	}
	layers.Double(env, i, s, headDim, eps, text.side(), w)
	env.Arena.Release(mark)
}

// side returns the stream's weights as layers.Double takes them.
func (w *stream) side() *layers.Side {
	s := w.Attn.side()
	s.Up, s.Down = w.MLP.Up, w.MLP.Down
	return s
}

// side returns the weights of an attention as package layers takes them.
func (a *attention) side() *layers.Side {
	s := &layers.Side{QKV: []*engine.Weight{a.QKV}, Out: a.Proj}
	if a.Norm != nil {
		s.Norm = layers.RMS(a.Norm.Query, a.Norm.Key, eps)
	}
	return s
}
