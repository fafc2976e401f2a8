package layers

import (
	"cmp"
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
)

// CheckEntries returns an error for the first entry whose shapes do not fit spec or differ from the first entry's. It
// checks what all families share: both contexts and their lengths, the prefix, the references and the pooled vector
// (longer ones are cut, nil means zeros).
func CheckEntries(spec *dit.Spec, entries []dit.Entry) error {
	if len(entries) == 0 {
		return fmt.Errorf("%s: no conditioning entry", spec.Family)
	}
	for i, e := range entries {
		wrong := func(field, rule string, got, want int) error {
			return fmt.Errorf("%s: entry %d: %s has %d %s, want %d", spec.Family, i, field, got, rule, want)
		}
		vision := spec.VisionDim
		if e.Vision.Rows+entries[0].Vision.Rows == 0 {
			vision = 0
		}
		for _, c := range []struct {
			field      string
			got, first dit.Array
			cols, n    int
		}{
			{"context", e.Context, entries[0].Context, spec.TextColumns(&entries[i]), e.ContextLen},
			{"second context", e.Context2, entries[0].Context2, spec.Context2Dim, e.Context2Len},
			{"picture", e.Vision, entries[0].Vision, vision, 0},
		} {
			switch {
			case c.cols == 0:
				continue
			case c.got.Cols != c.cols:
				return wrong(c.field, "columns", c.got.Cols, c.cols)
			case c.got.Rows != c.first.Rows:
				return wrong(c.field, "tokens, but entries of one call are alike", c.got.Rows, c.first.Rows)
			case len(c.got.Data) != c.got.Rows*c.got.Cols:
				return wrong(c.field, "values", len(c.got.Data), c.got.Rows*c.got.Cols)
			case c.n < 0 || c.n > c.got.Rows:
				return fmt.Errorf("%s: entry %d: length of %s is %d, want 0..%d", spec.Family, i, c.field, c.n, c.got.Rows)
			}
		}
		if n := e.Prefix.Rows; n != entries[0].Prefix.Rows || len(e.Prefix.Data) != n*e.Prefix.Cols ||
			n > 0 && (!spec.Prefix || e.Prefix.Cols != spec.Width) {
			return fmt.Errorf("%s: entry %d: a prefix of [%d, %d] in front of the text, which the network does not take, or "+
				"another than that of the other entries", spec.Family, i, n, e.Prefix.Cols)
		}
		if !slices.Equal(e.Slots, entries[0].Slots) || !slices.IsSorted(e.Slots) ||
			len(e.Slots) > 0 && (e.Slots[0] < 0 || e.Slots[len(e.Slots)-1] > e.Context.Rows) {
			return fmt.Errorf("%s: entry %d: slots of references %v, want ascending numbers of text rows from 0 to %d, the "+
				"same in all entries", spec.Family, i, e.Slots, e.Context.Rows)
		}
		if len(e.References) != len(entries[0].References) {
			return wrong("references: it", "of them, but entries of one call are alike", len(e.References),
				len(entries[0].References))
		}
		for k, r := range e.References {
			first := entries[0].References[k]
			switch {
			case !spec.References:
				return fmt.Errorf("%s: entry %d: has references, which the network does not take", spec.Family, i)
			case r.Y < 1 || r.X < 1 || r.Y%max(1, r.T) != 0 || r.Sound && spec.Sound.Channels == 0 ||
				len(r.Data) != spec.ReferenceChannels(&r)*r.Y*r.X:
				return fmt.Errorf("%s: entry %d: reference %d has %d values, want %d channels of %d x %d", spec.Family, i, k,
					len(r.Data), spec.ReferenceChannels(&r), r.Y, r.X)
			case !r.Like(&first) || e.Method != entries[0].Method:
				return fmt.Errorf("%s: entry %d: reference %d is of another size or place than the first entry's", spec.Family,
					i, k)
			}
		}
		if e.Pooled != nil && len(e.Pooled) < spec.PooledDim {
			return wrong("pooled vector", "values", len(e.Pooled), spec.PooledDim)
		}
	}
	return nil
}

// Begin checks the entries of a call (CheckEntries) and returns a Prepared with their number, sizes and grid.
func Begin(spec *dit.Spec, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	if err := CheckEntries(spec, entries); err != nil {
		return nil, err
	}
	return &dit.Prepared{N: len(entries), Lt: spec.JointTokens(&entries[0]), Grid: grid, Entries: entries}, nil
}

// Hints uploads the hint of every entry: [n, rows, cols] f32 in the arena. It returns an error, which starts with
// whose, if a hint has another size.
func Hints(env dit.Env, whose string, entries []dit.Entry, rows, cols int) (engine.Tensor, error) {
	for i := range entries {
		if h := &entries[i].Hint; h.Rows != rows || h.Cols != cols || len(h.Data) != rows*cols {
			return engine.Tensor{}, fmt.Errorf("%s: entry %d: the hint is [%d, %d], want [%d, %d]", whose, i, h.Rows, h.Cols,
				rows, cols)
		}
	}
	return Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Hint }), nil
}

// Contexts uploads the array that pick selects of every entry: [n, Lt, C] f32 in the arena.
func Contexts(env dit.Env, entries []dit.Entry, pick func(dit.Entry) dit.Array) engine.Tensor {
	first := pick(entries[0])
	t := env.Arena.Alloc(engine.F32, len(entries), first.Rows, first.Cols)
	for i, e := range entries {
		env.Ops.Upload(t.Index(0, i), pick(e).Data)
	}
	return t
}

// Pooled uploads the pooled vectors, cut to dim: [n, dim]. Absent ones are zeros.
func Pooled(env dit.Env, entries []dit.Entry, dim int) engine.Tensor {
	all := make([]float32, len(entries)*dim)
	for i, e := range entries {
		copy(all[i*dim:(i+1)*dim], e.Pooled)
	}
	return Upload(env, all, len(entries), dim)
}

// KeyLen returns the number of valid context tokens of every entry for cross-attention, nil if all entries use all of
// them.
func KeyLen(entries []dit.Entry) []int {
	out := make([]int, len(entries))
	for i, e := range entries {
		out[i] = cmp.Or(e.ContextLen, e.Context.Rows)
	}
	if slices.Min(out) == entries[0].Context.Rows {
		return nil
	}
	return out
}
