package qwenimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// side is the weights of one stream, in a form that both share.
type side struct {
	attn *imageAttention
	mlp  *mlp
}

// Block runs block i on the rows of s.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, w := env.Arena.Mark(), &m.Net.Blocks[i]
	layers.Double[side]{
		D: m.Spec().HeadDim, Eps: eps,
		QKV: []func(side) *engine.Weight{
			func(w side) *engine.Weight { return w.attn.Q },
			func(w side) *engine.Weight { return w.attn.K },
			func(w side) *engine.Weight { return w.attn.V },
		},
		Out:  func(w side) *engine.Weight { return w.attn.Out },
		Norm: func(w side) engine.QKNorm { return layers.RMS(w.attn.QueryNorm, w.attn.KeyNorm, eps) },
		MLP: func(t layers.Stream[side]) {
			t.MLP(env, 5, engine.GELUTanh, func(w side) (up, down *engine.Weight) { return w.mlp.Up, w.mlp.Down })
		},
	}.Run(env, i, s,
		layers.Side[side]{W: side{(*imageAttention)(&w.Text), &w.TextMLP}, Mod: s.M.Text[i].Index(0, s.Step)},
		layers.Side[side]{W: side{&w.Image, &w.ImageMLP}, Mod: s.M.Image[i].Index(0, s.Step)})
	env.Arena.Release(mark)
}
