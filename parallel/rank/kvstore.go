package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// stored keeps the keys and values of the blocks of one stage, addressed by absolute token position: text first, then
// image. Rows that a micro-step does not compute are left from the last micro-step that did (PipeFusion,
// arXiv:2405.14430, sec. 3.3).
type stored struct {
	size plan.Sequence
	rows map[attentionKey]engine.Tensor // [B, L, 2, K/P, D] in the type of activations
}

func (m *stored) Reserve(env dit.Env, e extent) (keys []dit.Rows) {
	m.size, m.rows = e.size, map[attentionKey]engine.Tensor{}
	e.each(func(at attentionKey, rows int) { m.rows[at] = e.alloc(env, rows) })
	return e.inOrder()
}

// alloc takes the memory for keys and values of some tokens.
func (e *extent) alloc(env dit.Env, rows int) engine.Tensor {
	return env.Arena.Alloc(env.DType, e.batch, rows, 2, e.heads, e.spec.HeadDim)
}

// Attend implements attention: fresh K and V go to their places in the store, and queries attend to all of it.
func (m *stored) Attend(s *sequence, a dit.Attention, h heads) {
	rows := m.rows[attentionKey{a.Block, a.Index}]
	kv := kvRows{rows.Slice(1, 0, attended(m.size, a)), m.size.Text}
	s.toAll(kv, a, h, s.fill(kv, a, h))
}

// attended returns how many tokens of a sequence an attention attends to: those of the image also where other blocks of
// the model attend to text.
func attended(size plan.Sequence, a dit.Attention) int {
	if a.ImageOnly {
		return size.Image
	}
	return plan.StoreRows(size.Text, size.Image, a.Index)
}

// passing keeps nothing: each attention gathers the rows of its whole sequence, in order, in memory of its own.
type passing struct {
	size  plan.Sequence
	heads int
}

func (m *passing) Reserve(_ dit.Env, e extent) (keys []dit.Rows) {
	m.size, m.heads = e.size, e.heads
	return e.inOrder()
}

func (m *passing) Attend(s *sequence, a dit.Attention, h heads) {
	kv := m.take(s, a)
	s.toAll(kv, a, h, s.fill(kv, a, h))
}

func (m *passing) take(s *sequence, a dit.Attention) kvRows {
	return kvRows{s.arena.Alloc(a.Q.DType, a.Q.Dim(0), attended(m.size, a), 2, m.heads, a.Q.Dim(3)), m.size.Text}
}

// fill brings the fresh rows of all ranks of the sequence to their places and returns the queries of this one.
func (s *sequence) fill(kv kvRows, a dit.Attention, h heads) (q engine.Tensor) {
	q = h.freshInto(kv)
	s.shareFresh(kv, a)
	return q
}

// toAll attends with q to all rows.
func (s *sequence) toAll(kv kvRows, a dit.Attention, h heads, q engine.Tensor) {
	k, v := kv.all()
	s.scoresAfter(h.preface(), h.results(), q, k, v, 0, engine.AttentionArgs{Scale: a.Scale})
}

// shareFresh gives the fresh K and V of this ring place to all others, so that every place keeps the whole store. The
// traffic is that of a plain ring over the tokens of the micro-step, whatever the number of patches.
func (s *sequence) shareFresh(kv kvRows, a dit.Attention) {
	size, me := s.ring.Size(), s.ring.Rank()
	if size == 1 {
		return
	}
	k, _ := kv.all()
	b, h, d := k.Dim(0), k.Dim(2), k.Dim(3)
	counts := make([]int, size)
	for r := range counts {
		counts[r] = s.gathered(r, a.ImageOnly) * b * 2 * h * d
	}
	pack := func(t engine.Tensor, ring int, load bool) {
		s.eachPart(ring, a.ImageOnly, func(at int, text bool, r dit.Range) {
			rows := t.Split(0, s.gathered(ring, a.ImageOnly), b, 2, h, d).Slice(0, at, at+r.Len()) // [rows, B, 2, K/P, D]
			k, v := kv.keysAt(a, text, r)
			if load {
				s.ops.Copy(k, rows.Index(2, 0).Transpose(0, 1))
				s.ops.Copy(v, rows.Index(2, 1).Transpose(0, 1))
				return
			}
			s.ops.Copy(rows.Index(2, 0).Transpose(0, 1), k)
			s.ops.Copy(rows.Index(2, 1).Transpose(0, 1), v)
		})
	}
	mine := s.arena.Alloc(a.Q.DType, counts[me])
	pack(mine, me, false)
	everyone := s.arena.Alloc(a.Q.DType, comm.Total(counts))
	s.ring.Run(comm.NewAllGather(everyone, mine, counts))
	at := 0
	for r, n := range counts {
		if r != me {
			pack(everyone.Slice(0, at, at+n), r, true)
		}
		at += n
	}
}
