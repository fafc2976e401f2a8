package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// stored8 is stored in 8 bits (kv=fp8): E4M3 numbers with one f32 scale per token and head, keys and values separately.
// Fresh rows are attended to as they were computed, and stored rounded; stale rows are widened into memory of the
// attention. Synchronous evaluations, in which everything is fresh, are exact.
type stored8 struct {
	passing
	rows map[attentionKey]rows8
}

// rows8 is keys and values of one attention in 8 bits.
type rows8 struct {
	codes engine.Tensor // [B, L, 2, K/P, D] E4M3
	scale engine.Tensor // [B, L, 2, K/P] f32
}

func (m *stored8) Reserve(env dit.Env, e extent) (keys []dit.Rows) {
	m.rows = map[attentionKey]rows8{}
	e.each(func(at attentionKey, rows int) {
		m.rows[at] = rows8{
			codes: env.Arena.Alloc(engine.F8E4M3, e.batch, rows, 2, e.heads, e.spec.HeadDim),
			scale: env.Arena.Alloc(engine.F32, e.batch, rows, 2, e.heads),
		}
	})
	return m.passing.Reserve(env, e)
}

func (m *stored8) Attend(s *sequence, a dit.Attention, h heads) {
	kv, r := m.take(s, a), m.rows[attentionKey{a.Block, a.Index}]
	fresh, n, from := s.fresh(kv, a), kv.t.Dim(1), 0
	for _, f := range append(fresh, dit.Range{Start: n, End: n}) {
		if f.Start > from {
			s.ops.Dequantise(kv.t.Slice(1, from, f.Start), r.codes.Slice(1, from, f.Start), r.scale.Slice(1, from, f.Start))
		}
		from = f.End
	}
	q := s.fill(kv, a, h)
	for _, f := range fresh {
		s.ops.Quantise(r.codes.Slice(1, f.Start, f.End), r.scale.Slice(1, f.Start, f.End), kv.t.Slice(1, f.Start, f.End))
	}
	s.toAll(kv, a, h, q)
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
