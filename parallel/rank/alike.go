package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
)

// alikeHook returns dit.Env.AttendAlike, nil on a rank that has all keys.
func (s *sequence) alikeHook() func(dit.Attention) {
	if s.ulysses.Size()*s.ring.Size() == 1 {
		return nil
	}
	return func(a dit.Attention) {
		mark := s.arena.Mark()
		defer s.arena.Release(mark)
		if s.plan.InOrder() {
			s.alikeInOrder(a)
		} else {
			s.alikeMerged(a)
		}
	}
}

// alikeMerged attends over the keys of this rank and merges the results of all ranks by their log-sum-exp, in f32:
// first within each Ulysses group, then around the ring, in the order of the ranks on each of them. Queries are few, so
// that results are fewer bytes than keys.
func (s *sequence) alikeMerged(a dit.Attention) {
	b, l, h, d := a.Q.Dim(0), a.Q.Dim(1), a.Q.Dim(2), a.Q.Dim(3)
	n := b * l * h * d
	parts := func(t engine.Tensor) (o, lse engine.Tensor) {
		return t.Slice(0, 0, n).Split(0, b, l, h, d), t.Slice(0, n, n+b*h*l).Split(0, b, h, l)
	}
	mine := s.arena.Alloc(engine.F32, n+b*h*l)
	o, lse := parts(mine)
	s.ops.Attention(a.Out, a.Q, a.K, a.V, engine.AttentionArgs{Scale: a.Scale, LSE: lse})
	s.ops.Copy(o, a.Out)
	for _, ranks := range []comm.Comm{s.ulysses, s.ring} {
		size := ranks.Size()
		if size == 1 {
			continue
		}
		mark, counts := s.arena.Mark(), make([]int, size)
		for r := range counts {
			counts[r] = mine.Len()
		}
		all := s.arena.Alloc(engine.F32, size*mine.Len())
		ranks.Run(comm.NewAllGather(all, mine, counts))
		for r := range size {
			part := all.Slice(0, r*mine.Len(), (r+1)*mine.Len())
			if r == 0 {
				s.ops.Copy(mine, part)
				continue
			}
			more, sums := parts(part)
			s.ops.MergeAttention(o, lse, more, sums)
		}
		s.arena.Release(mark)
	}
	s.ops.Copy(a.Out, o)
}

// alikeInOrder brings the keys of all ranks here, in the order of the sequence, and attends to them as one rank does.
func (s *sequence) alikeInOrder(a dit.Attention) {
	b, h, d := a.K.Dim(0), a.K.Dim(2), a.K.Dim(3)
	row, me := b*2*h*d, s.ring.Rank()
	view := func(t engine.Tensor) (k, v engine.Tensor) { // [rows, B, 2, H, D]
		t = t.Split(0, t.Len()/row, b, 2, h, d)
		return t.Index(2, 0).Transpose(0, 1), t.Index(2, 1).Transpose(0, 1)
	}
	mine := s.arena.Alloc(a.K.DType, a.K.Dim(1)*row)
	if k, v := view(mine); a.K.Dim(1) > 0 {
		s.ops.Copy(k, a.K)
		s.ops.Copy(v, a.V)
	}
	gather := func(ranks comm.Comm, rows func(r int) int) {
		if ranks.Size() == 1 {
			return
		}
		counts := make([]int, ranks.Size())
		for r := range counts {
			counts[r] = rows(r) * row
		}
		all := s.arena.Alloc(a.K.DType, comm.Total(counts))
		ranks.Run(comm.NewAllGather(all, mine, counts))
		mine = all
	}
	gather(s.ulysses, func(u int) int { return s.count(me, u, true) })
	gather(s.ring, func(r int) int { return s.gathered(r, true) })
	k, v := view(mine)
	s.ops.Attention(a.Out, a.Q, k, v, engine.AttentionArgs{Scale: a.Scale})
}
