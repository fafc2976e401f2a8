package krea2

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// text computes what TextOut reads, [n, L, E] f32 in the arena, from contexts [n, L, taps*W], which it overwrites: the
// taps of a token attend to each other and are summed with learned weights, then tokens attend to each other.
func (m *Model) text(env dit.Env, context engine.Tensor) engine.Tensor {
	f, w := &m.Net.Fusion, m.cfg.TextWidth
	n, l := context.Dim(0), context.Dim(1)
	all := context.Merge(0).Split(1, m.cfg.Taps, w) // [n*L, taps, W]
	x := env.Arena.Alloc(engine.F32, n*l, w, 1)
	mark := env.Arena.Mark()
	for at := 0; at < n*l; at += tappedTokens {
		to := min(at+tappedTokens, n*l)
		for i := range f.Taps {
			f.Taps[i].run(env, all.Slice(0, at, to), m.cfg.TextHeads)
		}
		by := env.Arena.Alloc(engine.F32, to-at, w, m.cfg.Taps)
		env.Ops.Copy(by, all.Slice(0, at, to).Transpose(1, 2))
		env.Ops.Linear(x.Slice(0, at, to), by, f.Projector, engine.Epilogue{})
		env.Arena.Release(mark)
	}
	tokens := x.Index(2, 0).Split(0, n, l) // [n, L, W]
	for i := range f.Tokens {
		f.Tokens[i].run(env, tokens, m.cfg.TextHeads)
	}
	env.Ops.RMSNorm(tokens, tokens, m.Net.TextNorm, eps)
	hidden := env.Arena.Alloc(engine.F32, n, l, m.cfg.Hidden)
	env.Ops.Linear(hidden, tokens, m.Net.TextIn, engine.Epilogue{Act: engine.GELUTanh})
	return hidden
}

// run computes x += out(attention(norm1(x)) * sigmoid(gate(norm1(x)))), then x += down(silu(side(norm2(x))) *
// up(norm2(x))), for x [B, L, W].
func (b *textBlock) run(env dit.Env, x engine.Tensor, heads int) {
	mark := env.Arena.Mark()
	row := func(n int) engine.Tensor { return layers.Scratch(env, x, x.Dim(0), x.Dim(1), n) }
	linear := func(x engine.Tensor, w *engine.Weight) engine.Tensor {
		y := row(w.N())
		env.Ops.Linear(y, x, w, engine.Epilogue{})
		return y
	}
	h := row(x.Dim(2))
	half := env.Arena.Mark()
	env.Ops.RMSNorm(h, x, b.Norm1, eps)
	q, k, v, gate := linear(h, b.Q), linear(h, b.K), linear(h, b.V), linear(h, b.Gate)
	d := x.Dim(2) / heads
	qh, kh := layers.Heads(q, d), layers.Heads(k, d)
	env.Ops.QKNormRoPE(qh, kh, engine.Tensor{}, qh, kh, engine.Tensor{}, layers.RMS(b.Query, b.Key, eps), engine.RoPE{})
	env.Ops.Attention(layers.Heads(h, d), qh, kh, layers.Heads(v, d), engine.AttentionArgs{})
	env.Ops.ActivateMul(h, gate, h, engine.Sigmoid)
	env.Ops.Linear(x, h, b.Out, engine.Epilogue{Residual: x})
	env.Arena.Release(half)
	env.Ops.RMSNorm(h, x, b.Norm2, eps)
	side, up := linear(h, b.Side), linear(h, b.Up)
	env.Ops.ActivateMul(up, side, up, engine.SiLU)
	env.Ops.Linear(x, up, b.Down, engine.Epilogue{Residual: x})
	env.Arena.Release(mark)
}

// tappedTokens is how many tokens have their taps merged at once. Each token is a sequence of its own there, so a long
// prompt needs no more memory than a short one.
const tappedTokens = 64
