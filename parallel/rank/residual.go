package rank

import (
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Own returns the image rows of an entry's residuals that the rank at these places gets: those that it computes or, in
// a pipeline, whose patches are cut differently, all.
func Own(p plan.Plan, size plan.Sequence, sequence, tensor int) dit.Range {
	if p.Pipe > 1 {
		return dit.Range{End: size.Image}
	}
	return p.Kept(wholeEvaluation().Rows(size, p.Places(false))[sequence], tensor).Image
}

// residuals adds the entry's residuals for block b to the image rows of a run.
func (n *network) residuals(env dit.Env, run *entryRun, b int) {
	x := run.state.ImageRows()
	if x.Dim(1) == 0 {
		return
	}
	for _, r := range n.open.Entries[run.entry].Residuals {
		if !slices.Contains(r.Blocks, b) {
			continue
		}
		layer(env, "control")
		mark := env.Arena.Mark()
		add := env.Arena.Alloc(x.DType, x.Dim(0), x.Dim(1), x.Dim(2))
		if !env.Arena.Measuring() {
			items := dit.Range{End: x.Dim(0)}
			env.Ops.Upload(add, CutRows(r.Rows, items.End, items, x.Dim(2), run.state.Rows.Image))
		}
		env.Ops.Add(x, x, add)
		env.Arena.Release(mark)
	}
}

// CutRows copies items, and ranges of rows of each in turn, out of v [b, L, f]. It returns v itself if that is all of
// it.
func CutRows(v []float32, b int, items dit.Range, f int, rows ...dit.Range) []float32 {
	l, n := len(v)/b/f, 0
	for _, r := range rows {
		n += r.Len()
	}
	if items.Len() == b && n == l {
		return v
	}
	out := make([]float32, 0, items.Len()*n*f)
	for i := items.Start; i < items.End; i++ {
		for _, r := range rows {
			out = append(out, v[(i*l+r.Start)*f:(i*l+r.End)*f]...)
		}
	}
	return out
}
