package layers

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
)

// Methods to place references (dit.Entry.Method). Every other name means Offset.
const (
	ByIndex  = "index"
	AtZero   = "index_timestep_zero" // ByIndex, with references modulated as at timestep 0
	Negative = "negative_index"      // ByIndex, counting down
	UXO      = "uxo"
	Offset   = "offset"
)

// Placed is a latent and the position of its first token.
type Placed struct {
	Grid dit.Grid
	At   [3]int // index of the latent, row, column
}

// Place returns the positions of the references of an entry and, last, of the image (ComfyUI comfy/ldm/flux/model.py
// and qwen_image/model.py). References follow one another on the first axis, step apart, or lie below and right of the
// image and of each other (UXO), or all have index 1, each below or right of those before, whichever gives the smaller
// extent (Offset).
func Place(spec *dit.Spec, e *dit.Entry, g dit.Grid, method string, step int) (out []Placed) {
	high, wide, p, references := 0, 0, spec.PatchSize, e.References
	if spec.ReferenceTokens(e) == 0 {
		references = nil
	}
	for i, r := range references {
		at, down, right := (i+1)*step, 0, 0
		switch method {
		case ByIndex, AtZero:
		case Negative:
			at = -at
		case UXO:
			at, down, right = 0, g.Y*p+high, g.X*p+wide
			high, wide = high+r.Y, wide+r.X
		default:
			at, down = 1, high
			if r.Y+high > r.X+wide {
				down, right = 0, wide
			}
			high, wide = max(high, r.Y+down), max(wide, r.X+right)
		}
		out = append(out, Placed{spec.Tokens(r.Y, r.X), [3]int{at, (down + p/2) / p, (right + p/2) / p}})
	}
	return append(out, Placed{Grid: g})
}

// Positions returns the position of every token of an entry, as in FLUX: text(k) for text token k, then those of the
// tokens of the references and of the image.
func Positions(spec *dit.Spec, e *dit.Entry, g dit.Grid, method string, step int, text func(int) [4]int) [][4]int {
	var out [][4]int
	for k := range e.Prefix.Rows + e.Context.Rows {
		out = append(out, text(k))
	}
	for _, l := range Place(spec, e, g, method, step) {
		for i := range l.Grid.Tokens() {
			out = append(out, [4]int{l.At[0], l.At[1] + i/l.Grid.X, l.At[2] + i%l.Grid.X})
		}
	}
	return out
}

// EmbedJoint allocates p.Text [n, p.Lt, E] in the arena and fills it with the prefix of p's entries as it is, their
// text embedded by the weight text, and their references embedded by image. before transforms the contexts [n, Lt, C]
// prior to their projection; nil: it does not.
func EmbedJoint(env dit.Env, spec *dit.Spec, p *dit.Prepared, text, image *engine.Weight,
	before func(engine.Tensor) engine.Tensor,
) {
	prefix, textRows := p.Entries[0].Prefix.Rows, p.Entries[0].Prefix.Rows+p.Entries[0].Context.Rows
	p.Text = env.Arena.Alloc(env.DType, p.N, p.Lt, spec.Width)
	mark := env.Arena.Mark()
	if prefix > 0 {
		env.Ops.Copy(p.Text.Slice(1, 0, prefix), Contexts(env, p.Entries, func(e dit.Entry) dit.Array { return e.Prefix }))
		env.Arena.Release(mark)
	}
	if textRows > prefix {
		context := Contexts(env, p.Entries, func(e dit.Entry) dit.Array { return e.Context })
		if before != nil {
			context = before(context)
		}
		Project(env, p.Text.Slice(1, prefix, textRows), context, text)
		env.Arena.Release(mark)
	}
	if p.Lt > textRows {
		rows := p.Text.Slice(1, textRows, p.Lt)
		Project(env, rows, references(env, spec, p.Entries, rows.Dim(1)), image)
	}
	env.Arena.Release(mark)
}

// Concat uploads the channels that follow the features of the latent in image tokens: p.Concat in the arena. It does
// nothing if the network reads none. It returns an error for channels that are missing or of another size.
func Concat(env dit.Env, spec *dit.Spec, p *dit.Prepared) error {
	if spec.Concat == 0 {
		return nil
	}
	for i, e := range p.Entries {
		c := e.Concat
		if c.Y != p.Grid.LatentY || c.X != p.Grid.LatentX || len(c.Data) != spec.Concat*c.Y*c.X {
			return fmt.Errorf("%s: entry %d: %d concatenated values of %d x %d, want %d channels of %d x %d", spec.Family, i,
				len(c.Data), c.Y, c.X, spec.Concat, p.Grid.LatentY, p.Grid.LatentX)
		}
	}
	p.Concat = UploadComputed(env, func() (all []float32) {
		for _, e := range p.Entries {
			all = append(all, patches(e.Concat, spec.Concat, spec.PatchSize, p.Grid)...)
		}
		return all
	}, p.N, p.Grid.Tokens(), spec.Concat*spec.PatchSize*spec.PatchSize)
	return nil
}

// EmbedRows fills the rows of s: text and references as Prepare embedded them, if there are any, and the tokens x
// [B, li, C*p*p] of the latent, extended by p.Concat if present, projected by w, plus their positions, if any.
func EmbedRows(env dit.Env, s *dit.State, x engine.Tensor, w *engine.Weight) {
	if !s.P.Text.IsZero() {
		Entries(env, s.TextRows(), s.P.Text.Slice(1, s.Rows.Text.Start, s.Rows.Text.End))
	}
	rows := s.Rows.Image
	if rows.Len() == 0 {
		return
	}
	mark := env.Arena.Mark()
	if !s.P.Concat.IsZero() {
		latent, wide := x, Scratch(env, x, s.B, rows.Len(), w.K())
		env.Ops.Copy(wide.Slice(2, 0, latent.Dim(2)), latent)
		Entries(env, wide.Slice(2, latent.Dim(2), w.K()), s.P.Concat.Slice(1, rows.Start, rows.End))
		x = wide
	}
	env.Ops.Linear(s.ImageRows(), x, w, engine.Epilogue{})
	if !s.P.Pos.IsZero() {
		env.Ops.Add(s.ImageRows(), s.ImageRows(), s.P.Pos.Slice(1, rows.Start, rows.End))
	}
	env.Arena.Release(mark)
}

// references uploads the tokens of the references of all entries: [n, l, C*p*p].
func references(env dit.Env, spec *dit.Spec, entries []dit.Entry, l int) engine.Tensor {
	return UploadComputed(env, func() (all []float32) {
		for i := range entries {
			for k := range entries[i].References {
				all = append(all, ReferenceRows(spec, &entries[i].References[k])...)
			}
		}
		return all
	}, len(entries), l, spec.Channels*spec.PatchSize*spec.PatchSize)
}

// ReferenceRows returns the tokens of a reference, as those of a latent are ordered.
func ReferenceRows(spec *dit.Spec, r *dit.Reference) (out []float32) {
	if !r.Sound {
		return patches(*r, spec.Channels, spec.PatchSize, spec.ReferenceGrid(r))
	}
	for at := 0; at < r.Y*r.X; at += spec.Sound.Patch {
		for c := range spec.Sound.Channels {
			out = append(out, r.Data[c*r.Y*r.X+at:][:spec.Sound.Patch]...)
		}
	}
	return out
}

// patches returns the tokens of a reference of c channels: [Y*X, C*p*p] with features (channel, row, column). Odd sides
// are padded circularly, each frame by itself.
func patches(r dit.Reference, c, p int, g dit.Grid) []float32 {
	out := make([]float32, 0, g.Y*g.X*c*p*p)
	tall, rows := r.Y/max(1, g.T), g.Frame().Y // of a frame: rows of the reference, and of tokens
	for t := range g.Y * g.X {
		top, row := t/g.X/rows*tall, t/g.X%rows*p
		for ch := range c {
			for i := range p * p {
				y, x := top+(row+i/p)%tall, (t%g.X*p+i%p)%r.X
				out = append(out, r.Data[(ch*r.Y+y)*r.X+x])
			}
		}
	}
	return out
}
