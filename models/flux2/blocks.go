package flux2

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs double or single block i on the rows of s.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	if d := m.Spec().HeadDim; i < m.cfg.Depth {
		w := &m.Net.Double[i]
		layers.Double(env, i, s, d, eps, w.Txt.side(), w.Img.side())
	} else {
		layers.Single(env, i, s, d, eps, m.Net.Single[i-m.cfg.Depth].side())
	}
	env.Arena.Release(mark)
}

// side returns the stream's weights as layers.Double takes them.
func (w *stream) side() *layers.Side {
	return &layers.Side{
		QKV: []*engine.Weight{w.QKV}, Norm: layers.RMS(w.Query, w.Key, eps), Out: w.Proj,
		Gate: w.Gate, Up: w.Up, Down: w.Down,
	}
}

// side returns the block's weights as layers.Single takes them.
func (w *single) side() *layers.Side {
	return &layers.Side{
		QKV: []*engine.Weight{w.QKV}, Norm: layers.RMS(w.Query, w.Key, eps), Out: w.Down, Gate: w.Gate, Up: w.Up,
	}
}
