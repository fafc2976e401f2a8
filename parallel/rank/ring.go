package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// ringAttention passes K and V of the groups of a ring around and merges partial softmax results (arXiv:2310.01889). It
// keeps nothing between evaluations.
type ringAttention struct{}

// Reserve implements attention. Keys are in the order of the ranks.
func (ringAttention) Reserve(_ dit.Env, e extent) (keys []dit.Rows) { return e.ranks }

func (ringAttention) Attend(s *sequence, a dit.Attention, h heads) {
	q, k, v := h.fresh()
	s.over(a, h.preface(), h.results(), q, k, v)
}

// over attends with q [B, L, K, G, D] over the keys of the preface, if there is one, and of all ring places. K and V of
// this place are passed on; those of the others arrive in turn. The preface is on every place and goes with its own.
func (s *sequence) over(a dit.Attention, preface, out, q, k, v engine.Tensor) {
	size, me := s.ring.Size(), s.ring.Rank()
	if size == 1 {
		s.scoresAfter(preface, out, q, k, v, 0, engine.AttentionArgs{Scale: a.Scale})
		return
	}
	b, l, h, g, d := q.Dim(0), q.Dim(1), q.Dim(2), q.Dim(3), q.Dim(4)
	most, before := 0, make([]int, size) // number of keys of earlier places
	for r := range size {
		n := s.gathered(r, a.ImageOnly)
		if most = max(most, n); r+1 < size {
			before[r+1] = before[r] + n
		}
	}
	current := s.arena.Alloc(q.DType, most*b*2*h*d)
	next := s.arena.Alloc(q.DType, most*b*2*h*d)
	part := s.arena.Alloc(q.DType, b, l, h, g, d)
	lse, lse2 := s.arena.Alloc(engine.F32, g, b, h, l), s.arena.Alloc(engine.F32, g, b, h, l)
	view := func(t engine.Tensor, n int) engine.Tensor {
		return t.Slice(0, 0, n*b*2*h*d).Split(0, b, n, 2, h, d)
	}
	ownKV := view(current, k.Dim(1))
	s.ops.Copy(ownKV.Index(2, 0), k)
	s.ops.Copy(ownKV.Index(2, 1), v)
	for step := range size {
		place := (me + size - step) % size
		n := s.gathered(place, a.ImageOnly)
		kv := view(current, n)
		o, sums, first := part, lse2, engine.Tensor{}
		if step == 0 {
			o, sums, first = out, lse, preface
		}
		s.scoresAfter(first, o, q, kv.Index(2, 0), kv.Index(2, 1), before[place], engine.AttentionArgs{
			Scale: a.Scale, LSE: sums,
		})
		for i := 0; i < g && step > 0; i++ {
			s.ops.MergeAttention(out.Index(3, i), lse.Index(0, i), part.Index(3, i), lse2.Index(0, i))
		}
		if step < size-1 {
			from := s.gathered((me+size-step-1)%size, a.ImageOnly)
			s.ring.SendRecv(next.Slice(0, 0, from*b*2*h*d), (me+size-1)%size, current.Slice(0, 0, n*b*2*h*d), (me+1)%size)
			current, next = next, current
		}
	}
}
