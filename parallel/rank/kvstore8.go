package rank

import (
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Stores in 8 bits (kv=fp8) hold E4M3 numbers with one f32 scale per token and head, keys and values separately. Fresh
// rows are attended to as they were computed, and stored rounded; stale rows are widened into memory of the attention.
// Synchronous evaluations, in which everything is fresh, are exact.

// widen returns the rows of an attention, with those filled in that this micro-step does not compute.
func (s *sequence) widen(store *kvStore, a dit.Attention) kvRows {
	at, rows := [2]int{a.Block, a.Index}, plan.StoreRows(store.Text, store.Image, a.Index)
	if a.ImageOnly {
		rows = store.Image // also where other blocks of the model attend to text
	}
	if !store.apart {
		return kvRows{store.at[at].rows.Slice(1, 0, rows), store.Text}
	}
	kv := kvRows{s.arena.Alloc(a.Q.DType, a.Q.Dim(0), rows, 2, store.heads, a.Q.Dim(3)), store.Text}
	q, own := store.at[at]
	if !own { // nothing is kept, as for another stage's block in a spread evaluation: all rows are fresh
		return kv
	}
	from := 0
	for _, r := range append(s.fresh(kv, a), dit.Range{Start: rows, End: rows}) {
		if r.Start > from {
			s.ops.Dequantise(kv.t.Slice(1, from, r.Start), q.codes.Slice(1, from, r.Start), q.scale.Slice(1, from, r.Start))
		}
		from = r.End
	}
	return kv
}

// keep stores the rows that the micro-step has computed.
func (s *sequence) keep(store *kvStore, kv kvRows, a dit.Attention) {
	q, own := store.at[[2]int{a.Block, a.Index}]
	if !own || !store.apart {
		return
	}
	for _, r := range s.fresh(kv, a) {
		s.ops.Quantise(q.codes.Slice(1, r.Start, r.End), q.scale.Slice(1, r.Start, r.End), kv.t.Slice(1, r.Start, r.End))
	}
}

// fresh lists the rows that all ranks of the sequence compute in this micro-step, in order: those of the text, those of
// the image. Ranks have adjacent ranges.
func (s *sequence) fresh(kv kvRows, a dit.Attention) []dit.Range {
	var out []dit.Range
	add := func(text bool, of func(dit.Rows) dit.Range) {
		var all dit.Range
		for _, r := range s.rows {
			switch part := of(r); {
			case part.Len() == 0:
			case all.Len() == 0:
				all = part
			default:
				all.Start, all.End = min(all.Start, part.Start), max(all.End, part.End)
			}
		}
		if all.Len() > 0 {
			out = append(out, kv.place(a, text, all))
		}
	}
	if !a.ImageOnly {
		add(true, func(r dit.Rows) dit.Range { return r.Text })
	}
	add(false, func(r dit.Rows) dit.Range { return r.Image })
	return out
}
