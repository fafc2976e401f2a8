package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// sequence runs attention of a token sequence that is split over ranks: Ulysses (arXiv:2309.14509) inside, ring
// (arXiv:2310.01889) outside.
//
// Ulysses: every rank packs the heads of each peer, normalizing and rotating them on the way, exchanges [B, L/P, H, D]
// -> [B, L, H/P, D], attends with its heads over all tokens of the group and sends the result back. Ring: groups pass
// their K and V around and merge partial softmax results. Token and head counts may be uneven or zero. Keys are in the
// order of the ranks, which does not affect attention because they are rotated before.
type sequence struct {
	ops     engine.Ops
	arena   *engine.Arena // exchange buffers, in stack order
	ulysses comm.Comm
	ring    comm.Comm
	rows    []dit.Rows // of every rank of the sequence, ring outside
	plan    plan.Plan
	bias    *biasTable // nil: the entry has none
}

// count returns how many rows rank u of ring place r contributes to an attention.
func (s *sequence) count(r, u int, imageOnly bool) int {
	rows := s.rows[r*s.ulysses.Size()+u]
	if imageOnly {
		return rows.Image.Len()
	}
	return rows.Len()
}

// gathered returns how many rows the Ulysses group at ring place r contributes to an attention.
func (s *sequence) gathered(r int, imageOnly bool) int {
	n := 0
	for u := range s.ulysses.Size() {
		n += s.count(r, u, imageOnly)
	}
	return n
}

// attend is the Attend hook.
func (s *sequence) attend(a dit.Attention) {
	mark := s.arena.Mark()
	defer s.arena.Release(mark)
	if s.ulysses.Size() == 1 {
		dit.Normalise(s.ops, a)
		s.over(a, a.Groups(a.Out), a.Groups(a.Q), a.K, a.V)
		return
	}
	heads := s.plan.GroupHeads(a.K.Dim(2))
	got := s.exchange(a, heads)
	out := s.results(a, got)
	k, v := keysOf(got)
	s.over(a, grouped(out), queriesOf(got), k, v)
	s.giveBack(a, out, heads)
}

// For each row, ranks of a Ulysses group send each other the heads of keys and values that the peer works on, each with
// the G heads of queries that read it: [L, B, G+2, K/P, D], queries first. Results go back as [L, B, G, K/P, D].

// queriesOf views an exchange as queries [B, L, K/P, G, D].
func queriesOf(got engine.Tensor) engine.Tensor { return grouped(got.Slice(2, 0, got.Dim(2)-2)) }

// keysOf views an exchange as keys and values [B, L, K/P, D].
func keysOf(got engine.Tensor) (k, v engine.Tensor) {
	g := got.Dim(2) - 2
	return got.Index(2, g).Transpose(0, 1), got.Index(2, g+1).Transpose(0, 1)
}

// grouped turns [L, B, G, K, D] into [B, L, K, G, D].
func grouped(t engine.Tensor) engine.Tensor { return t.Transpose(0, 1).Transpose(2, 3) }

// results allocates the results of this rank's heads: [L, B, G, K/P, D].
func (s *sequence) results(a dit.Attention, got engine.Tensor) engine.Tensor {
	return s.arena.Alloc(a.Q.DType, got.Dim(0), got.Dim(1), got.Dim(2)-2, got.Dim(3), got.Dim(4))
}

// exchange packs and sends the heads of every peer and returns where those of this rank arrive: [B, L/P, H, D] -> [L,
// B, G+2, K/P, D].
func (s *sequence) exchange(a dit.Attention, heads []dit.Range) engine.Tensor {
	p, me, r := s.ulysses.Size(), s.ulysses.Rank(), s.ring.Rank()
	q := a.Groups(a.Q)
	b, l, g, d := q.Dim(0), q.Dim(1), q.Dim(3), q.Dim(4)
	got := s.arena.Alloc(a.Q.DType, s.gathered(r, a.ImageOnly), b, g+2, heads[me].Len(), d)
	send, recv := make([]int, p), make([]int, p)
	packed := s.arena.Alloc(a.Q.DType, l*b*(g+2)*a.K.Dim(2)*d)
	at := 0
	for u, h := range heads {
		send[u] = l * b * (g + 2) * h.Len() * d
		recv[u] = s.count(r, u, a.ImageOnly) * b * (g + 2) * heads[me].Len() * d
		if send[u] == 0 {
			continue
		}
		chunk := packed.Slice(0, at, at+send[u]).Split(0, l, b, g+2, h.Len(), d)
		dk, dv := keysOf(chunk)
		dq := queriesOf(chunk)
		dit.EachNorm(a, func(lo, hi int, _ bool, _ dit.Range, n engine.QKNorm, rope engine.RoPE) {
			to := func(t engine.Tensor) engine.Tensor { return t.Slice(1, lo, hi) }
			from := func(t engine.Tensor) engine.Tensor { return to(t).Slice(2, h.Start, h.End) }
			dit.QKNormRoPE(s.ops, to(dq), to(dk), to(dv), from(q), from(a.K), from(a.V), n, rope)
		})
		at += send[u]
	}
	s.ulysses.Run(comm.NewAllToAll(got, packed, recv, send))
	return got
}

// giveBack returns to every rank its rows of all heads: [L, B, G, K/P, D] -> [B, L/P, H, D].
func (s *sequence) giveBack(a dit.Attention, out engine.Tensor, heads []dit.Range) {
	p, me, r := s.ulysses.Size(), s.ulysses.Rank(), s.ring.Rank()
	to := a.Groups(a.Out)
	b, l, g, d := to.Dim(0), to.Dim(1), to.Dim(3), to.Dim(4)
	send, recv := make([]int, p), make([]int, p)
	for u := range p {
		send[u] = s.count(r, u, a.ImageOnly) * b * g * heads[me].Len() * d
		recv[u] = l * b * g * heads[u].Len() * d
	}
	back := s.arena.Alloc(a.Q.DType, l*b*g*a.K.Dim(2)*d)
	s.ulysses.Run(comm.NewAllToAll(back, out, recv, send))
	at := 0
	for u, h := range heads {
		if recv[u] > 0 {
			from := grouped(back.Slice(0, at, at+recv[u]).Split(0, l, b, g, h.Len(), d))
			for i := range g {
				s.ops.Copy(to.Slice(2, h.Start, h.End).Index(3, i), from.Index(3, i))
			}
		}
		at += recv[u]
	}
}

// over attends with q [B, L, K, G, D] over the keys of all ring places. K and V of this place are passed on; those of
// the others arrive in turn.
func (s *sequence) over(a dit.Attention, out, q, k, v engine.Tensor) {
	size, me := s.ring.Size(), s.ring.Rank()
	if size == 1 {
		s.scores(out, q, k, v, 0, engine.AttentionArgs{Scale: a.Scale})
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
	here := s.arena.Alloc(q.DType, most*b*2*h*d)
	next := s.arena.Alloc(q.DType, most*b*2*h*d)
	part := s.arena.Alloc(q.DType, b, l, h, g, d)
	lse, lse2 := s.arena.Alloc(engine.F32, g, b, h, l), s.arena.Alloc(engine.F32, g, b, h, l)
	view := func(t engine.Tensor, n int) engine.Tensor {
		return t.Slice(0, 0, n*b*2*h*d).Split(0, b, n, 2, h, d)
	}
	own := view(here, k.Dim(1))
	s.ops.Copy(own.Index(2, 0), k)
	s.ops.Copy(own.Index(2, 1), v)
	for step := range size {
		place := (me + size - step) % size
		n := s.gathered(place, a.ImageOnly)
		kv := view(here, n)
		o, sums := part, lse2
		if step == 0 {
			o, sums = out, lse
		}
		s.scores(o, q, kv.Index(2, 0), kv.Index(2, 1), before[place], engine.AttentionArgs{Scale: a.Scale, LSE: sums})
		for i := 0; i < g && step > 0; i++ {
			s.ops.MergeAttention(out.Index(3, i), lse.Index(0, i), part.Index(3, i), lse2.Index(0, i))
		}
		if step < size-1 {
			from := s.gathered((me+size-step-1)%size, a.ImageOnly)
			s.ring.SendRecv(next.Slice(0, 0, from*b*2*h*d), (me+size-1)%size, here.Slice(0, 0, n*b*2*h*d), (me+1)%size)
			here, next = next, here
		}
	}
}
