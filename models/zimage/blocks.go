package zimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i: the first ones on the image rows alone, leaving text rows unchanged, the others on all rows.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	w, x, of, rope := m.block(i), s.X, s.Wide, s.RoPE
	image := i < m.cfg.Refiners
	if image {
		lt := s.Wide.Text.Len()
		x, of = s.ImageRows(), s.Wide.ImageOnly()
		rope = engine.RoPE{Cos: rope.Cos.Slice(0, lt, s.Wide.Len()), Sin: rope.Sin.Slice(0, lt, s.Wide.Len())}
	}
	w.Block.run(env, x, s.M.Image[i].Index(0, s.Step), m.Spec(),
		dit.Attention{Block: i, RoPE: rope, Rows: of, ImageOnly: image})
}

// run computes x += gate * norm(out(attention(h))), then x += gate * norm(down(silu(gate(h)) * up(h))), h being norm(x)
// scaled. x holds those of the rows of a that this rank keeps between projections. mod [n, 4E] is
// (scale, gate, scale, gate); it is absent for text, which has neither scales nor gates. a is the attention without its
// tensors.
func (b *block) run(env dit.Env, x, mod engine.Tensor, spec *dit.Spec, a dit.Attention) {
	mark, e, of := env.Arena.Mark(), x.Dim(2), a.Rows
	part := func(i int) engine.Tensor {
		if mod.IsZero() {
			return mod
		}
		return layers.Chunk(mod, e, i)
	}
	h := layers.Scratch(env, x, x.Dim(0), x.Dim(1), e)
	result := layers.Scratch(env, x, x.Dim(0), x.Dim(1), e)
	half := env.Arena.Mark()
	scaled(env, h, x, b.Norm1, part(0))
	a.TextNorm = layers.RMS(b.Query, b.Key, headEps)
	a.ImageNorm = a.TextNorm
	attended, _ := layers.Attended(env, a, h, b.QKV, spec.HeadDim, spec.Group())
	layers.RowProduct(env, result, attended, b.Out, of)
	gated(env, x, result, b.Norm2, part(1))
	env.Arena.Release(half)

	scaled(env, h, x, b.Norm3, part(2))
	up := layers.Scratch(env, x, x.Dim(0), of.Len(), b.Up.N())
	gate := layers.Scratch(env, x, x.Dim(0), of.Len(), b.Up.N())
	whole := layers.Gathered(env, h, of)
	env.Ops.Linear(gate, whole, b.Gate, engine.Epilogue{})
	env.Ops.Linear(up, whole, b.Up, engine.Epilogue{})
	env.Ops.ActivateMul(up, gate, up, engine.SiLU)
	layers.RowProduct(env, result, up, b.Down, of)
	gated(env, x, result, b.Norm4, part(3))
	env.Arena.Release(mark)
}

// scaled computes h = norm(x) * (1 + scale). Without rows it does nothing.
func scaled(env dit.Env, h, x, norm, scale engine.Tensor) {
	if x.Dim(1) == 0 {
		return
	}
	env.Ops.RMSNorm(h, x, norm, eps)
	if !scale.IsZero() {
		env.Ops.GatedAdd(h, h, scale, h, engine.Tensor{})
	}
}

// gated computes x += gate * norm(r) and overwrites r. Without rows it does nothing.
func gated(env dit.Env, x, r, norm, gate engine.Tensor) {
	if x.Dim(1) == 0 {
		return
	}
	env.Ops.RMSNorm(r, r, norm, eps)
	env.Ops.GatedAdd(x, x, gate, r, engine.Tensor{})
}
