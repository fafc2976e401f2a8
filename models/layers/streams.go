package layers

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// Side is the weights that the text or the image tokens of a block are computed with.
type Side struct {
	QKV   []*engine.Weight // to queries, keys and values, one fused weight or three
	Norm  engine.QKNorm    // of queries and keys
	Out   *engine.Weight   // after the attention; nil: the side provides queries, keys and values and nothing else
	Gate  *engine.Weight   // of a gated MLP, beside Up; nil: the MLP is not gated
	Up    *engine.Weight   // nil: no MLP
	Down  *engine.Weight
	Again *Side // QKV, Norm and Out of a second attention, over image tokens alone; nil: there is none
}

// Stream is the rows that exchanges treat as one unit during a call of a block: text with references, the image, or
// both.
type Stream struct {
	X, H  engine.Tensor // its rows of X, and scratch of that shape
	Of    dit.Rows      // its rows as projections see them
	To    dit.Range     // where those are in buffers of all rows of the call
	Parts []Segment     // at least one
}

// Segment is some rows of a stream with weights and modulations of their own.
type Segment struct {
	*Side
	Mod        engine.Tensor // [n, k*E]
	Wide, Kept dit.Range     // its rows among those that projections see, and among those of X
}

// Streams splits the rows of a call of block i into its two streams, text with references and the image. Streams
// without rows are left out. Their scratch is in the arena. Where there are twice as many image modulations as entries,
// the second half is for references.
func Streams(env dit.Env, i int, s *dit.State, text, image *Side) (out []Stream) {
	n, lt, rows := s.P.N, s.Wide.Text.Len(), s.Rows.Text.Len()
	textMod, imageMod := s.M.Text[i].Index(0, s.Step), s.M.Image[i].Index(0, s.Step)
	h := Scratch(env, s.X, s.B, s.Rows.Len(), s.X.Dim(2))
	if lt > 0 {
		wide, kept := OwnText(s, s.Wide), OwnText(s, s.Rows)
		t := Stream{X: s.TextRows(), H: h.Slice(1, 0, rows), Of: s.Wide.TextOnly(), To: dit.Range{End: lt}}
		if wide > 0 {
			t.Parts = append(t.Parts, Segment{text, textMod.Slice(0, 0, n), dit.Range{End: wide}, dit.Range{End: kept}})
		}
		if wide < lt {
			mod := imageMod.Slice(0, imageMod.Dim(0)-n, imageMod.Dim(0))
			t.Parts = append(t.Parts, Segment{image, mod, dit.Range{Start: wide, End: lt}, dit.Range{Start: kept, End: rows}})
		}
		out = append(out, t)
	}
	if li := s.Wide.Image.Len(); li > 0 {
		x, mod := s.ImageRows(), imageMod.Slice(0, 0, n)
		out = append(out, Stream{
			X: x, H: h.Slice(1, rows, s.Rows.Len()), Of: s.Wide.ImageOnly(), To: dit.Range{Start: lt, End: lt + li},
			Parts: []Segment{{image, mod, dit.Range{End: li}, dit.Range{End: x.Dim(1)}}},
		})
	}
	return out
}

// OneStream returns all rows of a call of block i as one stream. Where rows have modulations of their own, text,
// references and image are separate parts: references where there are twice as many image modulations as entries; text
// and references where block i has modulations of the text, which are first those of text, then those of references.
func OneStream(env dit.Env, i int, s *dit.State, side *Side) Stream {
	n, l, rows, mod := s.P.N, s.Wide.Len(), s.Rows.Len(), s.M.Image[i].Index(0, s.Step)
	t := Stream{X: s.X, H: Scratch(env, s.X, s.B, rows, s.X.Dim(2)), Of: s.Wide, To: dit.Range{End: l}}
	now := mod.Slice(0, 0, n)
	text, references := now, mod.Slice(0, mod.Dim(0)-n, mod.Dim(0))
	if apart := s.M.Text[i]; !apart.IsZero() {
		both, e := apart.Index(0, s.Step), apart.Dim(2)/2
		text, references = both.Slice(1, 0, e), both.Slice(1, e, 2*e)
	} else if mod.Dim(0) == n {
		t.Parts = []Segment{{side, now, dit.Range{End: l}, dit.Range{End: rows}}}
		return t
	}
	wide, kept, lt, k := OwnText(s, s.Wide), OwnText(s, s.Rows), s.Wide.Text.Len(), s.Rows.Text.Len()
	t.Parts = []Segment{
		{side, text, dit.Range{End: wide}, dit.Range{End: kept}},
		{side, references, dit.Range{Start: wide, End: lt}, dit.Range{Start: kept, End: k}},
		{side, now, dit.Range{Start: lt, End: l}, dit.Range{Start: k, End: rows}},
	}
	return t
}

// OwnText returns how many of the text rows of r are text. Those after them are references.
func OwnText(s *dit.State, r dit.Rows) int {
	if len(s.P.Entries[0].References) == 0 {
		return r.Text.Len()
	}
	return max(0, min(s.P.Entries[0].Prefix.Rows+s.P.Entries[0].Context.Rows, r.Text.End)-r.Text.Start)
}

// Norm writes the normalized and modulated rows of X to H. Chunk number chunk of the modulations is the shift, the next
// one the scale.
func (t *Stream) Norm(env dit.Env, chunk int, eps float32) {
	e := t.X.Dim(2)
	for _, p := range t.Parts {
		AdaLN(env, t.H.Slice(1, p.Kept.Start, p.Kept.End), t.X.Slice(1, p.Kept.Start, p.Kept.End),
			Chunk(p.Mod, e, chunk), Chunk(p.Mod, e, chunk+1), eps)
	}
}

// ScaledRMS writes norm(x) * scale + shift of the rows of X to H. scale and shift are numbers of chunks of the
// modulations (ScaledRMS).
func (t *Stream) ScaledRMS(env dit.Env, scale, shift int, eps float32) {
	e := t.X.Dim(2)
	for _, p := range t.Parts {
		ScaledRMS(env, t.H.Slice(1, p.Kept.Start, p.Kept.End), t.X.Slice(1, p.Kept.Start, p.Kept.End),
			Chunk(p.Mod, e, scale), Chunk(p.Mod, e, shift), eps)
	}
}

// linear computes y = act(x W^T + bias), for each part with the weight that pick selects. The rows x are as Gathered
// returns them.
func (t *Stream) linear(env dit.Env, y, x engine.Tensor, act engine.Act, pick func(*Side) *engine.Weight) {
	for _, p := range t.Parts {
		env.Ops.Linear(y.Slice(1, p.Wide.Start, p.Wide.End), x.Slice(1, p.Wide.Start, p.Wide.End), pick(p.Side),
			engine.Epilogue{Act: act})
	}
}

// add computes X += gate * (a W^T + bias), for each part with the weights that pick selects. gate is the number of a
// chunk of the modulations.
func (t *Stream) add(env dit.Env, a engine.Tensor, gate int, pick func(*Side) []*engine.Weight) {
	var parts []Part
	for _, p := range t.Parts {
		parts = append(parts, Part{pick(p.Side), Chunk(p.Mod, t.X.Dim(2), gate), p.Wide, p.Kept})
	}
	RowParts(env, t.X, a, parts, t.Of)
}

// AddOut computes X += gate * out(attended); the gate is the third chunk of the modulations.
func (t *Stream) AddOut(env dit.Env, attended engine.Tensor) {
	t.add(env, attended, 2, func(w *Side) []*engine.Weight { return []*engine.Weight{w.Out} })
}

// AddMLP computes X += gate * down(gelu(up(h))) for the normalized rows H, or down(silu(Gate(h)) * up(h)) where the
// side has a Gate. gate is the sixth chunk of the modulations.
func (t *Stream) AddMLP(env dit.Env) {
	mark, w := env.Arena.Mark(), t.Parts[0].Side
	up := func(w *Side) *engine.Weight { return w.Up }
	hidden := Scratch(env, t.H, t.H.Dim(0), t.Of.Len(), w.Up.N())
	if w.Gate == nil {
		inner := env.Arena.Mark()
		t.linear(env, hidden, Gathered(env, t.H, t.Of), engine.GELUTanh, up)
		env.Arena.Release(inner)
	} else {
		side := Scratch(env, t.H, hidden.Shape()...)
		whole := Gathered(env, t.H, t.Of)
		t.linear(env, side, whole, engine.ActNone, func(w *Side) *engine.Weight { return w.Gate })
		t.linear(env, hidden, whole, engine.ActNone, up)
		env.Ops.ActivateMul(hidden, side, hidden, engine.SiLU)
	}
	t.add(env, hidden, 5, func(w *Side) []*engine.Weight { return []*engine.Weight{w.Down} })
	env.Arena.Release(mark)
}
