package qwenimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i on the rows of s.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, w := env.Arena.Mark(), &m.Net.Blocks[i]
	layers.Double(env, i, s, m.Spec().HeadDim, eps, side((*imageAttention)(&w.Text), &w.TextMLP),
		side(&w.Image, &w.ImageMLP))
	env.Arena.Release(mark)
}

// side returns a stream's weights as layers.Double takes them.
func side(w *imageAttention, m *mlp) *layers.Side {
	return &layers.Side{
		QKV: []*engine.Weight{w.Q, w.K, w.V}, Norm: layers.RMS(w.QueryNorm, w.KeyNorm, eps), Out: w.Out,
		Up: m.Up, Down: m.Down,
	}
}
