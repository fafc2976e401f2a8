package flux3

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i on the rows of s: the mode blocks of the image leave text rows unchanged.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, d := env.Arena.Mark(), m.Spec().HeadDim
	if i < m.cfg.Depth {
		lt, rows, all := s.Wide.Text.Len(), s.ImageRows(), s.Wide.ImageOnly()
		rope := engine.RoPE{Cos: s.RoPE.Cos.Slice(0, lt, s.Wide.Len()), Sin: s.RoPE.Sin.Slice(0, lt, s.Wide.Len())}
		m.Net.Image[i].alone(env, rows, s.M.Image[i].Index(0, s.Step), d,
			dit.Attention{Block: i, RoPE: rope, Rows: all, ImageOnly: true})
	} else {
		layers.Single(env, i, s, d, eps, m.Net.Joint[i-m.cfg.Depth].side())
	}
	env.Arena.Release(mark)
}

// apart runs the mode blocks of text and references on x [n, Lt, E], the text rows of p, as far as some of the rows of
// that kind are needed. mod [n, 6E] or [1, 6E] is the modulation of text, then that of references.
func (m *Model) apart(env dit.Env, p *dit.Prepared, x, mod engine.Tensor, needed dit.Range) {
	env.Reduce, env.Gather, env.Scatter = nil, nil, nil // every rank computes all of it
	env.Attend = dit.Whole(env.Ops, env.Arena)
	lt, e := p.Entries[0].Context.Rows, m.cfg.Hidden
	for i, s := range []struct {
		blocks []whole
		rows   dit.Range
	}{{m.Net.Text, dit.Range{End: lt}}, {m.Net.Cond, dit.Range{Start: lt, End: p.Lt}}} {
		if max(s.rows.Start, needed.Start) >= min(s.rows.End, needed.End) {
			continue
		}
		rope := engine.RoPE{
			Cos: p.RoPE.Cos.Slice(0, s.rows.Start, s.rows.End), Sin: p.RoPE.Sin.Slice(0, s.rows.Start, s.rows.End),
		}
		for k := range s.blocks {
			b := block(s.blocks[k])
			b.alone(env, x.Slice(1, s.rows.Start, s.rows.End), mod.Slice(1, 3*i*e, 3*(i+1)*e), m.Spec().HeadDim,
				dit.Attention{RoPE: rope, Rows: dit.Rows{Text: s.rows}})
		}
	}
}

// alone runs a block on rows of one kind, which attend to nothing else. x [B, l, E] holds those of the rows of a that
// this rank keeps between projections, mod is [n, 3E], a the attention without its norms and tensors.
func (b *block) alone(env dit.Env, x, mod engine.Tensor, d int, a dit.Attention) {
	mark, w := env.Arena.Mark(), b.side()
	a.TextNorm, a.ImageNorm = w.Norm, w.Norm
	all, rows := dit.Range{End: a.Rows.Len()}, dit.Range{End: x.Dim(1)}
	layers.Parallel(env, layers.Stream{
		X: x, H: layers.Scratch(env, x, x.Shape()...), Of: a.Rows, To: all,
		Parts: []layers.Segment{{Side: w, Mod: mod, Wide: all, Kept: rows}},
	}, a, d, eps, w)
	env.Arena.Release(mark)
}

// side returns the block's weights as package layers takes them.
func (b *block) side() *layers.Side {
	return &layers.Side{
		QKV: []*engine.Weight{b.Q, b.K, b.V}, Norm: layers.RMS(b.Query, b.Key, eps), Out: b.Out, Gate: b.Gate, Up: b.Up,
		Down: b.Down,
	}
}
