package minimaxh3

import (
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i on the rows of s.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark := env.Arena.Mark()
	t := m.stream(env, s, s.M.Image[i].Index(0, s.Step), m.Net.Blocks[i].side())
	m.run(env, &t, dit.Attention{Block: i, RoPE: s.RoPE, Rows: s.Wide})
	env.Arena.Release(mark)
}

// run computes x += gate * out(attention(norm(x))), then x += gate * down(silu(gate(h)) * up(h)) with h = norm(x), for
// the rows of t, of which all parts have the same weights. a is the attention without its norms and tensors.
func (m *Model) run(env dit.Env, t *layers.Stream, a dit.Attention) {
	mark, w := env.Arena.Mark(), t.Parts[0].Side
	t.ScaledRMS(env, 1, 0, eps)
	a.TextNorm, a.ImageNorm = w.Norm, w.Norm
	attended, _ := layers.Attended(env, a, t.H, w.QKV[0], m.cfg.HeadDim, 1)
	t.AddOut(env, attended)
	env.Arena.Release(mark)
	t.ScaledRMS(env, 4, 3, eps)
	t.AddMLP(env)
	env.Arena.Release(mark)
}

// stream returns the rows of s with modulations mod [3*R*N, k*E] (Modulate), one part for each run.
func (m *Model) stream(env dit.Env, s *dit.State, mod engine.Tensor, side *layers.Side) layers.Stream {
	t := layers.Stream{
		X: s.X, H: layers.Scratch(env, s.X, s.X.Shape()...), Of: s.Wide, To: dit.Range{End: s.Wide.Len()},
	}
	for _, p := range m.parts(s, mod, side) {
		if p.Wide.Len() > 0 {
			t.Parts = append(t.Parts, p)
		}
	}
	if t.Parts == nil { // no rows, but weights that exchanges need
		t.Parts = []layers.Segment{{Side: side, Mod: mod.Slice(0, 0, s.P.N)}}
	}
	return t
}

// parts returns the runs of s, some of which may have no rows, the last two being video and sound.
func (m *Model) parts(s *dit.State, mod engine.Tensor, side *layers.Side) (out []layers.Segment) {
	all := runs(m.Spec(), &s.P.Entries[0], s.P.Grid)
	at := moments(all)
	within := func(r run, of dit.Rows) dit.Range {
		all, before := of.Text, 0
		if r.image {
			all, before = of.Image, of.Text.Len()
		}
		lo := min(max(r.rows.Start, all.Start), all.End)
		hi := max(lo, min(r.rows.End, all.End))
		return dit.Range{Start: before + lo - all.Start, End: before + hi - all.Start}
	}
	for _, r := range all {
		k := (r.modality*len(at[0]) + slices.Index(at[r.modality], r.moment)) * s.P.N
		out = append(out, layers.Segment{
			Side: side, Mod: mod.Slice(0, k, k+s.P.N), Wide: within(r, s.Wide), Kept: within(r, s.Rows),
		})
	}
	return out
}

// Head normalizes, modulates and projects the rows of video and sound, and negates the results.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	mark, e, w := env.Arena.Mark(), m.cfg.Hidden, &m.Net.Final
	h := layers.Scratch(env, s.X, s.X.Shape()...)
	parts := m.parts(s, s.M.Head.Index(0, s.Step), nil)
	for i, linear := range []*engine.Weight{w.Video, w.Sound} {
		p := parts[len(parts)-2+i]
		if p.Kept.Len() == 0 {
			continue
		}
		x, y := s.X.Slice(1, p.Kept.Start, p.Kept.End), h.Slice(1, p.Kept.Start, p.Kept.End)
		layers.ScaledRMS(env, y, x, layers.Chunk(p.Mod, e, 1), layers.Chunk(p.Mod, e, 0), eps)
		minus := env.Arena.Alloc(engine.F32, 1, linear.N())
		env.Ops.Fill(minus, -1)
		lt := s.Rows.Text.Len()
		to := out.Slice(1, p.Kept.Start-lt, p.Kept.End-lt).Slice(2, 0, linear.N())
		env.Ops.Linear(to, y, linear, engine.Epilogue{Gate: minus})
	}
	env.Arena.Release(mark)
}
