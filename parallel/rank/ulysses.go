package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
)

// ulyssesAttention exchanges heads for tokens (arXiv:2309.14509) around another method. Every rank packs the heads of
// each peer, normalizing and rotating them on the way, exchanges [B, L/P, H, D] -> [B, L, H/P, D], attends with its
// heads over all tokens of the group and sends the results back. Token and head counts may be uneven or zero. Keys are
// in the order of the ranks, which does not affect attention because they are rotated before.
type ulyssesAttention struct{ attention }

func (m ulyssesAttention) Attend(s *sequence, a dit.Attention, _ heads) {
	h := &exchanged{s: s, a: a, heads: s.plan.GroupHeads(a.K.Dim(2))}
	m.attention.Attend(s, a, h)
	s.giveBack(a, h.out, h.heads)
}

// exchanged is the heads that this rank attends with, from all rows of its group.
type exchanged struct {
	s        *sequence
	a        dit.Attention
	heads    []dit.Range   // of every rank of the group
	got, out engine.Tensor // heads of this rank, and their results
}

func (h *exchanged) fresh() (q, k, v engine.Tensor) {
	h.got = h.s.exchange(h.a, h.heads)
	k, v = keysOf(h.got)
	return queriesOf(h.got), k, v
}

func (h *exchanged) freshInto(kv kvRows) (q engine.Tensor) {
	q, freshK, freshV := h.fresh()
	h.s.eachPart(h.s.ring.Rank(), h.a.ImageOnly, func(at int, text bool, r dit.Range) {
		k, v := kv.keysAt(h.a, text, r)
		h.s.ops.Copy(k, freshK.Slice(1, at, at+r.Len()))
		h.s.ops.Copy(v, freshV.Slice(1, at, at+r.Len()))
	})
	return q
}

func (h *exchanged) results() engine.Tensor {
	h.out = h.s.results(h.a, h.got)
	return grouped(h.out)
}

// preface needs no exchange, because every rank has the keys and values of the whole preface.
func (h *exchanged) preface() engine.Tensor {
	if h.a.Preface.IsZero() {
		return h.a.Preface
	}
	of := h.heads[h.s.ulysses.Rank()]
	return h.a.Preface.Slice(3, of.Start, of.End)
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
