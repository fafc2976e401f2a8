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
	row, me := rowLen(a.K), s.ring.Rank()
	mine := s.arena.Alloc(a.K.DType, a.K.Dim(1)*row)
	s.pack(mine, a.K, a.V)
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
	k, v := keysIn(mine, mine.Len()/row, a.K)
	s.ops.Attention(a.Out, a.Q, k, v, engine.AttentionArgs{Scale: a.Scale})
}
