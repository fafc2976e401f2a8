package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// biasTable is what tokens of an entry add to their attention scores (dit.Entry.Biases). Image tokens, and text tokens
// before the first range, add all biases; text tokens after the start of range i add only those of later ranges. Row i
// of the table has the ranges from i on. Queries that read the same row are adjacent, so that it is broadcast and never
// written out.
type biasTable struct {
	starts []int         // text rows where ranges begin
	rows   engine.Tensor // [ranges, keys] f32, keys in the order of attention
}

// biases makes the table of an entry, nil if it has none. Entries that are evaluated as one batch have the same biases.
func (s *session) biases(e *sessionEntry) *biasTable {
	if !s.model.Spec().Biases || len(e.p.Entries[0].Biases) == 0 {
		return nil
	}
	list, size := e.p.Entries[0].Biases, s.size(e)
	order := []dit.Rows{{Text: dit.Range{End: size.Text}}}
	if s.open.Plan.Pipe == 1 && !s.open.Plan.InOrder() { // keys are in the order of the ranks
		order, _, _ = s.rows(whole(), e)
	}
	n := size.Text + size.Image
	t := &biasTable{rows: s.env.Arena.Alloc(engine.F32, len(list), n)}
	values, at := make([]float32, len(list)*n), 0
	for _, r := range order {
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
	if !s.env.Arena.Measuring() {
		s.env.Ops.Upload(t.rows, values)
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

// scores is dit.Attend with the biases of the entry. Queries q [B, L, K, G, D] are those of this ring place; key is the
// index of the first key in the table.
func (s *sequence) scores(o, q, k, v engine.Tensor, key int, args engine.AttentionArgs) {
	if s.bias == nil {
		dit.Attend(s.ops, o, q, k, v, args)
		return
	}
	lse, keys := args.LSE, k.Dim(1)
	type stretch struct{ lo, hi, row int }
	var todo []stretch
	s.eachPart(s.ring.Rank(), false, func(at int, text bool, of dit.Range) {
		s.bias.each(text, of, func(lo, hi, row int) {
			if n := len(todo); n > 0 && todo[n-1].row == row {
				todo[n-1].hi = at + hi
				return
			}
			todo = append(todo, stretch{at + lo, at + hi, row})
		})
	})
	for _, r := range todo {
		if args.Bias = (engine.Tensor{}); r.row < len(s.bias.starts) {
			row := s.bias.rows.Slice(0, r.row, r.row+1).Slice(1, key, key+keys).Unsqueeze(0)
			args.Bias = row.Broadcast(0, q.Dim(2)).Broadcast(1, r.hi-r.lo)
		}
		if !lse.IsZero() {
			args.LSE = lse.Slice(3, r.lo, r.hi)
		}
		dit.Attend(s.ops, o.Slice(1, r.lo, r.hi), q.Slice(1, r.lo, r.hi), k, v, args)
	}
}
