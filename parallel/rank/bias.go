package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// biasTable is what tokens of an entry add to their attention scores (dit.Entry.Biases). Image tokens, and text tokens
// before the first range, add all biases; text tokens after the start of range i add only those of later ranges. Row i
// of the table has the ranges from i on. Queries that read the same row are adjacent, so that it is broadcast and never
// written out.
type biasTable struct {
	starts []int         // text rows where ranges begin
	rows   engine.Tensor // [ranges, keys] f32, keys in the order of attention
}

// newBiasTable makes a table from env.Arena for a sequence whose keys are attended to in the given order.
func newBiasTable(env dit.Env, list []dit.Bias, size plan.Sequence, keys []dit.Rows) *biasTable {
	n := size.Text + size.Image
	t := &biasTable{rows: env.Arena.Alloc(engine.F32, len(list), n)}
	values, at := make([]float32, len(list)*n), 0
	for _, r := range keys {
		for i, b := range list {
			for token := max(b.Rows.Start, r.Text.Start); token < min(b.Rows.End, r.Text.End); token++ {
				for row := range i + 1 {
					values[row*n+at+token-r.Text.Start] = b.Value
				}
			}
		}
		at += r.Len()
	}
	for _, b := range list {
		t.starts = append(t.starts, b.Rows.Start)
	}
	if !env.Arena.Measuring() {
		env.Ops.Upload(t.rows, values)
	}
	return t
}

// each visits rows [lo, hi) of text tokens or image tokens with the row of the table that they read; len(t.starts)
// means that they read none.
func (t *biasTable) each(text bool, of dit.Range, visit func(lo, hi, row int)) {
	if !text {
		visit(0, of.Len(), 0)
		return
	}
	at := of.Start
	for row := range len(t.starts) + 1 {
		end := of.End
		if row < len(t.starts) {
			end = min(end, t.starts[row])
		}
		if at < end {
			visit(at-of.Start, end-of.Start, row)
			at = end
		}
	}
}
