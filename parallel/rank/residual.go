package rank

import (
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Residual is what a control net that ran elsewhere adds to the image tokens after some blocks, the same in every
// evaluation.
type Residual struct {
	Blocks []int      // indices into dit.Spec.Blocks; a block is in one residual of an entry at most
	Rows   dit.Floats // [B, L, E] of the image rows that Own names, flat
}

// Own returns the image rows of an entry's residuals that the rank at these places gets: those that it computes or, in
// a pipeline, whose patches are cut differently, all.
func Own(p plan.Plan, size plan.Sequence, sequence, tensor int) dit.Range {
	if p.Pipe > 1 {
		return dit.Range{End: size.Image}
	}
	whole := EvaluateCommand{Whole: true}
	return p.Kept(whole.Rows(size, p.Places(false))[sequence], tensor).Image
}

// residuals adds the entry's residuals for block b to the image rows of a run.
func (s *session) residuals(env dit.Env, run *entryRun, b int) {
	x := run.state.ImageRows()
	if env.Half == dit.AttentionHalf || x.Dim(1) == 0 {
		return
	}
	for _, r := range s.open.Entries[run.entry].Residuals {
		if !slices.Contains(r.Blocks, b) {
			continue
		}
		layer(env, "control")
		mark := env.Arena.Mark()
		add := env.Arena.Alloc(x.DType, x.Dim(0), x.Dim(1), x.Dim(2))
		if !env.Arena.Measuring() {
			env.Ops.Upload(add, s.residualRows(r.Rows, run, x.Dim(2)))
		}
		env.Ops.Add(x, x, add)
		env.Arena.Release(mark)
	}
}

// residualRows returns the rows of a run out of those that the rank was sent.
func (s *session) residualRows(v []float32, run *entryRun, width int) []float32 {
	rows, b := run.state.Rows.Image, s.open.Batch
	if len(v) == b*rows.Len()*width {
		return v
	}
	item := len(v) / b
	out := make([]float32, 0, b*rows.Len()*width)
	for i := range b {
		out = append(out, v[i*item+rows.Start*width:i*item+rows.End*width]...)
	}
	return out
}
