package ltx

import (
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// connectorRows is the longest text that connectors place; longer ones go beyond.
const connectorRows = 4096

// text fills p.Source with what blocks attend to.
func (m *Model) text(env dit.Env, p *dit.Prepared) {
	video, sound := m.contexts(env, p.Entries)
	e, n := m.cfg.Hidden, m.Net.After
	to, beside := p.Source.Slice(2, 0, e), p.Source.Slice(2, e, e+m.cfg.Sound)
	if n == nil {
		env.Ops.Copy(to, video)
		env.Ops.Copy(beside, sound)
		return
	}
	layers.MLP(env, to, video, n.Video.In, n.Video.Out, engine.GELUTanh)
	layers.MLP(env, beside, sound, n.Sound.In, n.Sound.Out, engine.GELUTanh)
}

// contexts returns the texts [n, L, W] of entries for the video and for the sound as they are behind the connectors.
func (m *Model) contexts(env dit.Env, entries []dit.Entry) (video, sound engine.Tensor) {
	n, c, connected := m.Net, &m.cfg, entries[0].Connected
	context := layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context })
	video, sound = context, context
	switch {
	case connected || c.Connectors.Project == None:
		width := c.Hidden
		if c.Connectors.Project == After {
			width = c.Connectors.Width
		}
		video, sound = context.Slice(2, 0, width), context.Slice(2, width, context.Dim(2))
	case c.Connectors.Project == Before:
		norm := env.Arena.Alloc(engine.F32, context.Shape()...)
		project := func(w *engine.Weight) engine.Tensor {
			out, scale := env.Arena.Alloc(engine.F32, context.Dim(0), context.Dim(1), w.N()), env.Arena.Alloc(engine.F32, w.K())
			env.Ops.Fill(scale, float32(math.Sqrt(float64(w.N())/float64(w.K()))))
			env.Ops.RMSNorm(norm, context, scale, eps)
			env.Ops.Linear(out, norm, w, engine.Epilogue{})
			return out
		}
		video, sound = project(n.Before.Video), project(n.Before.Sound)
	}
	if connected {
		return video, sound
	}
	return m.connect(env, video, &n.Connector, c.Connectors.HeadDim),
		m.connect(env, sound, n.SoundConn.plain(), c.Connectors.SoundHeadDim)
}

// plain returns w as the video's type, from which it differs in tags alone.
func (w *soundConnector) plain() *connector {
	out := &connector{sizes: w.sizes, Registers: w.Registers}
	for _, b := range w.Blocks {
		out.Blocks = append(out.Blocks, connectorBlock{connectorAttention(b.Self), b.MLP})
	}
	return out
}

// connect moves texts x [n, L, W] through a connector: learned rows fill them up, blocks attend to all rows, and a norm
// ends it. The result [n, L', W] is in the arena.
func (m *Model) connect(env dit.Env, x engine.Tensor, w *connector, d int) engine.Tensor {
	n, l, e, all := x.Dim(0), x.Dim(1), x.Dim(2), m.cfg.connected(x.Dim(1))
	out := env.Arena.Alloc(engine.F32, n, all, e)
	env.Ops.Copy(out.Slice(1, 0, l), x)
	r := w.Registers.Dim(0)
	for at := l; at < all; { // row i is learned row i mod r
		end := min(all, (at/r+1)*r)
		rows := w.Registers.Slice(0, at%r, at%r+end-at).Unsqueeze(0)
		env.Ops.Copy(out.Slice(1, at, end), rows.Broadcast(0, n))
		at = end
	}
	rope := layers.UploadRotation(env, all, e/2, func() layers.Rotation {
		a := axis{of: func(token int) int { return token }}
		for i := range all {
			a.at = append(a.at, float32(i)/connectorRows*2-1)
		}
		r := layers.Rotation{Cos: make([]float32, all*e/2), Sin: make([]float32, all*e/2), Pairs: e / 2}
		fill(r, all, 0, e/2, []axis{a}, doubles)
		return r
	})
	h := env.Arena.Alloc(engine.F32, n, all, e)
	for i := range w.Blocks {
		b, mark := &w.Blocks[i], env.Arena.Mark()
		env.Ops.RMSNorm(h, out, engine.Tensor{}, eps)
		self := attention(b.Self)
		t := projections(env, h, h, &self)
		layers.RotateWide(env, t.q, rope, d)
		layers.RotateWide(env, t.k, rope, d)
		env.Ops.Attention(layers.Heads(t.out, d), layers.Heads(t.q, d), layers.Heads(t.k, d), layers.Heads(t.v, d),
			engine.AttentionArgs{})
		self.add(env, out, h, t.out, engine.Tensor{})
		env.Arena.Release(mark)
		env.Ops.RMSNorm(h, out, engine.Tensor{}, eps)
		b.MLP.add(env, out, h, engine.Tensor{})
	}
	env.Ops.RMSNorm(out, out, engine.Tensor{}, eps)
	return out
}
