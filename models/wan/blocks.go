package wan

import (
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// Block runs block i: x += gate1 * attention(norm1(x)), x += cross-attention(norm3(x)), x += gate2 * mlp(norm2(x)).
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, w, d := env.Arena.Mark(), &m.Net.Blocks[i], m.Spec().HeadDim
	t := m.stream(env, s, s.M.Image[i].Index(0, s.Step), &layers.Side{Out: w.Self.Out, Up: w.Up, Down: w.Down})
	half := env.Arena.Mark()
	rows := func() engine.Tensor { return layers.Scratch(env, s.X, s.B, s.Wide.Len(), w.Self.Q.N()) }
	q, k, v, out := rows(), rows(), rows(), rows()
	t.Norm(env, 0, eps)
	inner := env.Arena.Mark()
	whole := layers.Gathered(env, t.H, t.Of)
	for _, p := range []struct {
		to engine.Tensor
		by *engine.Weight
	}{{q, w.Self.Q}, {k, w.Self.K}, {v, w.Self.V}} {
		env.Ops.Linear(p.to, whole, p.by, engine.Epilogue{})
	}
	env.Arena.Release(inner)
	layers.WideRMS(env, m.cfg.Hidden, eps, m.wide(q, w.Self.Query), m.wide(k, w.Self.Key))
	env.Attend(dit.Attention{
		Block: i, Q: layers.Heads(q, d), K: layers.Heads(k, d), V: layers.Heads(v, d), Out: layers.Heads(out, d),
		RoPE: s.RoPE, Rows: s.Wide, ImageOnly: true,
	})
	t.AddOut(env, out)
	env.Ops.LayerNorm(t.H, s.X, w.CrossNorm, w.CrossBias, eps)
	layers.ColumnLinear(env, q, t.H, w.Cross.Q, s.Wide, engine.ActNone)
	layers.WideRMS(env, m.cfg.Hidden, eps, m.wide(q, w.Cross.Query))
	kv, text := s.P.CrossKV[i], s.P.Lt
	layers.CrossAttend(env, layers.Heads(out, d), layers.Heads(q, d), kv.Slice(1, 0, text), nil)
	if w.Picture != nil {
		layers.CrossAttend(env, layers.Heads(k, d), layers.Heads(q, d), kv.Slice(1, text, kv.Dim(1)), nil)
		env.Ops.Add(out, out, k)
	}
	layers.RowLinear(env, s.X, out, w.Cross.Out, engine.Tensor{}, s.Wide)
	env.Arena.Release(half)
	t.Norm(env, 3, eps)
	t.AddMLP(env)
	env.Arena.Release(mark)
}

// stream returns the rows of s with modulations mod [N, k*E], one segment for each run of frames whose part of the
// timestep is the same.
func (m *Model) stream(env dit.Env, s *dit.State, mod engine.Tensor, side *layers.Side) layers.Stream {
	t := layers.Stream{
		X: s.X, H: layers.Scratch(env, s.X, s.X.Shape()...), Of: s.Wide, To: dit.Range{End: s.Wide.Len()},
	}
	n, all := s.P.N, s.P.Entries[0].Frames
	within := func(at, of dit.Range) dit.Range {
		lo := min(max(at.Start, of.Start), of.End)
		return dit.Range{Start: lo - of.Start, End: max(lo, min(at.End, of.End)) - of.Start}
	}
	if all == nil {
		t.Parts = []layers.Segment{{Side: side, Mod: mod, Wide: t.To, Kept: dit.Range{End: s.X.Dim(1)}}}
		return t
	}
	parts, tokens := parts(&s.P.Entries[0]), s.P.Grid.Frame().Tokens()
	for from, to := 0, 0; from < len(all); from = to {
		for to = from + 1; to < len(all) && all[to] == all[from]; to++ {
		}
		at, k := dit.Range{Start: from * tokens, End: to * tokens}, slices.Index(parts, all[from])
		part := layers.Segment{
			Side: side, Mod: mod.Slice(0, k*n, (k+1)*n), Wide: within(at, s.Wide.Image), Kept: within(at, s.Rows.Image),
		}
		if part.Wide.Len() > 0 || len(t.Parts) == 0 && to == len(all) {
			t.Parts = append(t.Parts, part)
		}
	}
	return t
}

// Head normalizes, modulates and projects the rows of the video.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	mark, e := env.Arena.Mark(), m.cfg.Hidden
	t := m.stream(env, s, s.M.Head.Index(0, s.Step), nil)
	for _, p := range t.Parts {
		h, x := t.H.Slice(1, p.Kept.Start, p.Kept.End), s.X.Slice(1, p.Kept.Start, p.Kept.End)
		layers.AdaLN(env, h, x, layers.Chunk(p.Mod, e, 0), layers.Chunk(p.Mod, e, 1), eps)
	}
	if s.X.Dim(1) > 0 {
		env.Ops.Linear(out, t.H, m.Net.Head.Linear, engine.Epilogue{})
	}
	env.Arena.Release(mark)
}
