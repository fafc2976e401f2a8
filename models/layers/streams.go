package layers

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// Stream is what exchanges treat as one during a call of a block: text with references, the picture, or both. W is the
// weights of a part of it.
type Stream[W any] struct {
	X, H  engine.Tensor // its rows of X, and scratch for as many
	Of    dit.Rows      // the rows that products see
	To    dit.Range     // those in buffers of all rows of the call
	Parts []Segment[W]
}

// Segment is some rows of a stream with weights and modulations of their own.
type Segment[W any] struct {
	W          W
	Mod        engine.Tensor // [n, k*E]
	Wide, Kept dit.Range     // its rows among those that products see, and among those of X
}

// Side is what text or image tokens are computed with: Mod is [N, k*E], where N may be twice the entries and the last
// half is for references.
type Side[W any] struct {
	W   W
	Mod engine.Tensor
}

// Streams cuts the rows of a call of a block of two streams, of text with references and of the picture; streams
// without rows are left out. Their scratch is from the arena.
func Streams[W any](env dit.Env, s *dit.State, text, image Side[W]) (out []Stream[W]) {
	n, lt, rows := s.P.N, s.Wide.Text.Len(), s.Rows.Text.Len()
	h := Scratch(env, s.X, s.B, s.Rows.Len(), s.X.Dim(2))
	if lt > 0 {
		wide, kept := OwnText(s, s.Wide), OwnText(s, s.Rows)
		t := Stream[W]{X: s.TextRows(), H: h.Slice(1, 0, rows), Of: s.Wide.TextOnly(), To: dit.Range{End: lt}}
		if wide > 0 {
			t.Parts = append(t.Parts, Segment[W]{text.W, text.Mod.Slice(0, 0, n), dit.Range{End: wide}, dit.Range{End: kept}})
		}
		if wide < lt {
			mod := image.Mod.Slice(0, image.Mod.Dim(0)-n, image.Mod.Dim(0))
			t.Parts = append(t.Parts, Segment[W]{
				image.W, mod, dit.Range{Start: wide, End: lt}, dit.Range{Start: kept, End: rows},
			})
		}
		out = append(out, t)
	}
	if li := s.Wide.Image.Len(); li > 0 {
		x := s.ImageRows()
		out = append(out, Stream[W]{
			x,
			h.Slice(1, rows, s.Rows.Len()),
			s.Wide.ImageOnly(),
			dit.Range{Start: lt, End: lt + li},
			[]Segment[W]{{image.W, image.Mod.Slice(0, 0, n), dit.Range{End: li}, dit.Range{End: x.Dim(1)}}},
		})
	}
	return out
}

// OneStream is all rows of a call of a block of one stream. Where references are modulated otherwise (side.Mod is twice
// the entries), text, references and picture are parts.
func OneStream[W any](env dit.Env, s *dit.State, side Side[W]) Stream[W] {
	n, l, rows := s.P.N, s.Wide.Len(), s.Rows.Len()
	t := Stream[W]{X: s.X, H: Scratch(env, s.X, s.B, rows, s.X.Dim(2)), Of: s.Wide, To: dit.Range{End: l}}
	add := func(mod engine.Tensor, wide, kept dit.Range) {
		if wide.Len() > 0 {
			t.Parts = append(t.Parts, Segment[W]{side.W, mod, wide, kept})
		}
	}
	now := side.Mod.Slice(0, 0, n)
	if side.Mod.Dim(0) == n {
		add(now, dit.Range{End: l}, dit.Range{End: rows})
		return t
	}
	wide, kept, lt, k := OwnText(s, s.Wide), OwnText(s, s.Rows), s.Wide.Text.Len(), s.Rows.Text.Len()
	add(now, dit.Range{End: wide}, dit.Range{End: kept})
	add(side.Mod.Slice(0, n, 2*n), dit.Range{Start: wide, End: lt}, dit.Range{Start: kept, End: k})
	add(now, dit.Range{Start: lt, End: l}, dit.Range{Start: k, End: rows})
	return t
}

// OwnText is how many of the text rows of r are text; those behind them are references.
func OwnText(s *dit.State, r dit.Rows) int {
	if len(s.P.Entries[0].References) == 0 {
		return r.Text.Len()
	}
	return max(0, min(s.P.Entries[0].Prefix.Rows+s.P.Entries[0].Context.Rows, r.Text.End)-r.Text.Start)
}

// Norm writes the normalised rows of X to H; chunk of the modulation and the one behind it are shift and scale.
func (t *Stream[W]) Norm(env dit.Env, chunk int, eps float32) {
	e := t.X.Dim(2)
	for _, p := range t.Parts {
		AdaLN(env, t.H.Slice(1, p.Kept.Start, p.Kept.End), t.X.Slice(1, p.Kept.Start, p.Kept.End),
			Chunk(p.Mod, e, chunk), Chunk(p.Mod, e, chunk+1), eps)
	}
}

// Weights picks a weight of every part, with a chunk of its modulation as the gate.
func (t *Stream[W]) Weights(gate int, pick func(W) *engine.Weight) (out []Part) {
	for _, p := range t.Parts {
		out = append(out, Part{Weight: pick(p.W), Gate: Chunk(p.Mod, t.X.Dim(2), gate), Wide: p.Wide, Kept: p.Kept})
	}
	return out
}

// Linear computes a product of the rows `of`, which Gathered brought together: y [B, L, N], with the weight of every
// part.
func (t *Stream[W]) Linear(env dit.Env, y, whole engine.Tensor, pick func(W) *engine.Weight) {
	for _, p := range t.Parts {
		env.Ops.Linear(y.Slice(1, p.Wide.Start, p.Wide.End), whole.Slice(1, p.Wide.Start, p.Wide.End), pick(p.W),
			engine.Epilogue{})
	}
}

// MLP computes x += gate * down(act(up(h))) for the normalised rows H; gate is a chunk of the modulations.
func (t *Stream[W]) MLP(env dit.Env, gate int, act engine.Act, pick func(W) (up, down *engine.Weight)) {
	mark := env.Arena.Mark()
	up := t.Weights(gate, func(w W) *engine.Weight { u, _ := pick(w); return u })
	hidden := Scratch(env, t.H, t.H.Dim(0), t.Of.Len(), up[0].Weight.N())
	ColumnParts(env, hidden, t.H, up, t.Of, act)
	RowParts(env, t.X, hidden, t.Weights(gate, func(w W) *engine.Weight { _, d := pick(w); return d }), t.Of)
	env.Arena.Release(mark)
}

// GatedMLP computes x += gate * down(silu(gate(h)) * up(h)) for the normalised rows H; gate is a chunk of the
// modulations.
func (t *Stream[W]) GatedMLP(env dit.Env, gate int, pick func(W) (gate, up, down *engine.Weight)) {
	mark := env.Arena.Mark()
	one := func(i int) func(W) *engine.Weight {
		return func(w W) *engine.Weight {
			g, u, d := pick(w)
			return [3]*engine.Weight{g, u, d}[i]
		}
	}
	n := 0 // without rows
	if len(t.Parts) > 0 {
		n = one(1)(t.Parts[0].W).N()
	}
	up, side := Scratch(env, t.H, t.H.Dim(0), t.Of.Len(), n), Scratch(env, t.H, t.H.Dim(0), t.Of.Len(), n)
	whole := Gathered(env, t.H, t.Of)
	t.Linear(env, side, whole, one(0))
	t.Linear(env, up, whole, one(1))
	env.Ops.ActivateMul(up, side, up, engine.SiLU)
	RowParts(env, t.X, up, t.Weights(gate, one(2)), t.Of)
	env.Arena.Release(mark)
}
