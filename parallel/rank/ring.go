package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/scope"
)

// ringAttention passes K and V of the groups of a ring around and merges partial softmax results (arXiv:2310.01889). It
// keeps nothing between evaluations.
type ringAttention struct{}

// Reserve implements attention. Keys are in the order of the ranks.
func (ringAttention) Reserve(_ dit.Env, e extent) (keys []dit.Rows) { return e.ranks }

// Attend implements attention: K and V of this place are passed on, those of the others arrive in turn. The preface is
// on every place and goes with its own.
func (ringAttention) Attend(s *sequence, a dit.Attention, h heads) {
	q, k, v := h.fresh()
	size, me := s.ring.Size(), s.ring.Rank()
	if size == 1 {
		s.scoresAfter(h.preface(), h.results(), q, k, v, 0, engine.AttentionArgs{Scale: a.Scale})
		return
	}
	before, row, most := s.keysBefore(a.ImageOnly), rowLen(k), 0
	count := func(place int) int { return before[place+1] - before[place] }
	for place := range size {
		most = max(most, count(place))
	}
	current, next := s.arena.Alloc(k.DType, most*row), s.arena.Alloc(k.DType, most*row)
	part := func(t engine.Tensor, place int) engine.Tensor { return t.Slice(0, 0, count(place)*row) }
	s.pack(part(current, me), k, v)
	m := s.merging(a, h, q)
	for step := range size {
		place := (me + size - step) % size
		k, v := keysIn(part(current, place), count(place), k)
		m.attend(k, v, before[place])
		if step < size-1 {
			from := (me + size - step - 1) % size
			s.ring.SendRecv(part(next, from), (me+size-1)%size, part(current, place), (me+1)%size)
			current, next = next, current
		}
	}
}

// gatheredAttention gathers K and V of the groups of a ring in one exchange, beside which it attends to its own, and
// merges the results. It keeps nothing between evaluations.
type gatheredAttention struct{ ringAttention }

// Attend implements attention. Without overlap, one attention over all keys follows the exchange.
func (gatheredAttention) Attend(s *sequence, a dit.Attention, h heads) {
	q, k, v := h.fresh()
	before, row, size, me := s.keysBefore(a.ImageOnly), rowLen(k), s.ring.Size(), s.ring.Rank()
	counts := make([]int, size)
	for r := range counts {
		counts[r] = (before[r+1] - before[r]) * row
	}
	own, all := s.arena.Alloc(k.DType, counts[me]), s.arena.Alloc(k.DType, before[size]*row)
	s.pack(own, k, v)
	gather := comm.NewAllGather(all, own, counts)
	if !s.plan.Overlap {
		s.ring.Run(gather)
		k, v := keysIn(all, before[size], k)
		s.scoresAfter(h.preface(), h.results(), q, k, v, 0, engine.AttentionArgs{Scale: a.Scale})
		return
	}
	m := s.merging(a, h, q)
	s.beside(gather, func() {
		k, v := keysIn(own, k.Dim(1), k)
		m.attend(k, v, before[me])
	})
	for _, of := range []dit.Range{{End: before[me]}, {Start: before[me+1], End: before[size]}} {
		if of.Len() > 0 {
			k, v := keysIn(all.Slice(0, of.Start*row, of.End*row), of.Len(), k)
			m.attend(k, v, of.Start)
		}
	}
}

// beside runs an exchange around the ring beside the calls of f. If f panics, it waits until the memory of the exchange
// may be freed.
func (s *sequence) beside(c *comm.Call, f func()) {
	s.ring.Begin(c)
	done := false
	defer func() {
		if !done { // the panic of f is the error of the request
			_ = scope.Recovered("exchange beside", func() error { s.ring.Fetched(); return nil })
		}
	}()
	f()
	done = true
	s.ring.Fetched()
}

// keysBefore returns how many keys the ring places before each one have, and at the end how many all have.
func (s *sequence) keysBefore(imageOnly bool) []int {
	out := []int{0}
	for r := range s.ring.Size() {
		out = append(out, out[r]+s.gathered(r, imageOnly))
	}
	return out
}

// Keys and values are exchanged by rows: [L, B, 2, K/P, D].

// rowLen returns how many values such a row has for keys k [B, L, K/P, D].
func rowLen(k engine.Tensor) int { return k.Dim(0) * 2 * k.Dim(2) * k.Dim(3) }

// keysIn views the first n rows of t as keys and values [B, n, K/P, D], of the shape of like but for their number.
func keysIn(t engine.Tensor, n int, like engine.Tensor) (k, v engine.Tensor) {
	t = t.Slice(0, 0, n*rowLen(like)).Split(0, n, like.Dim(0), 2, like.Dim(2), like.Dim(3))
	return t.Index(2, 0).Transpose(0, 1), t.Index(2, 1).Transpose(0, 1)
}

// pack copies keys and values into rows.
func (s *sequence) pack(rows, k, v engine.Tensor) {
	if k.Len() > 0 {
		toK, toV := keysIn(rows, k.Dim(1), k)
		s.ops.Copy(toK, k)
		s.ops.Copy(toV, v)
	}
}

// merging attends with the same queries over one part of the keys after the other, and merges the results by their
// log-sum-exp.
type merging struct {
	s            *sequence
	scale        float32
	preface      engine.Tensor // taken with the first part
	out, part, q engine.Tensor // [B, L, K/P, G, D]
	lse, partLSE engine.Tensor
	begun        bool
}

// merging takes from the arena what it needs besides the results.
func (s *sequence) merging(a dit.Attention, h heads, q engine.Tensor) *merging {
	b, l, k, g := q.Dim(0), q.Dim(1), q.Dim(2), q.Dim(3)
	sums := func() engine.Tensor { return s.arena.Alloc(engine.F32, g, b, k, l) }
	return &merging{
		s: s, scale: a.Scale, preface: h.preface(), out: h.results(), part: s.arena.Alloc(q.DType, q.Shape()...), q: q,
		lse: sums(), partLSE: sums(),
	}
}

// attend takes in keys and values [B, L, K/P, D]; key is the number of keys before them.
func (m *merging) attend(k, v engine.Tensor, key int) {
	if !m.begun {
		m.begun = true
		m.s.scoresAfter(m.preface, m.out, m.q, k, v, key, engine.AttentionArgs{Scale: m.scale, LSE: m.lse})
		return
	}
	m.s.scores(m.part, m.q, k, v, key, engine.AttentionArgs{Scale: m.scale, LSE: m.partLSE})
	for i := range m.q.Dim(3) {
		m.s.ops.MergeAttention(m.out.Index(3, i), m.lse.Index(0, i), m.part.Index(3, i), m.partLSE.Index(0, i))
	}
}
