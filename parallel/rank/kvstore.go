package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// kvStore holds the keys and values of one entry for the blocks of one stage, addressed by absolute token position:
// text first, then image. Rows that a micro-step does not compute are left from the last micro-step that did
// (PipeFusion, arXiv:2405.14430, sec. 3.3).
type kvStore struct {
	plan.Sequence
	heads int               // K/P
	at    map[[2]int]stored // (block, attention)
	apart bool              // attention needs memory of its own: rows are kept in 8 bits, or not at all
}

// stored is the keys and values of one attention.
type stored struct {
	rows engine.Tensor // [B, L, 2, K/P, D] in the type of activations
	// instead of rows, in 8 bits: [B, L, 2, K/P, D] E4M3, and [B, L, 2, K/P] f32
	codes, scale engine.Tensor
}

// newKVStore takes the memory for the blocks in held. heads is the number of heads of this rank.
func newKVStore(env dit.Env, spec *dit.Spec, p plan.Plan, held dit.Range, size plan.Sequence, b, heads int) *kvStore {
	s := &kvStore{Sequence: size, heads: heads, at: map[[2]int]stored{}, apart: p.KV8}
	for i := held.Start; i < held.End; i++ {
		for k := range max(spec.Blocks[i].Attends, 1) {
			s.at[[2]int{i, k}] = s.alloc(env, spec, b, k)
		}
	}
	return s
}

// alloc takes the memory for attention k of a block.
func (s *kvStore) alloc(env dit.Env, spec *dit.Spec, b, k int) stored {
	rows := plan.StoreRows(s.Text, s.Image, k)
	if !s.apart {
		return stored{rows: env.Arena.Alloc(env.DType, b, rows, 2, s.heads, spec.HeadDim)}
	}
	return stored{
		codes: env.Arena.Alloc(engine.F8E4M3, b, rows, 2, s.heads, spec.HeadDim),
		scale: env.Arena.Alloc(engine.F32, b, rows, 2, s.heads),
	}
}

// passing returns a store that keeps nothing: each attention allocates the rows of its whole sequence.
func (s *session) passing(e *sessionEntry) *kvStore {
	return &kvStore{Sequence: s.size(e), heads: s.heads(), apart: true}
}

// kvRows is the keys and values of one attention while it runs, [B, L, 2, K/P, D]: the store itself, or a widened copy.
type kvRows struct {
	t  engine.Tensor
	lt int // text tokens before the image
}

// place returns where rows of a text or an image are in the sequence of an attention.
func (r kvRows) place(a dit.Attention, text bool, of dit.Range) dit.Range {
	if !text && !a.ImageOnly {
		of.Start, of.End = of.Start+r.lt, of.End+r.lt
	}
	return of
}

// slots returns where rows of an attention belong: views [B, rows, K/P, D] of keys and values.
func (r kvRows) slots(a dit.Attention, text bool, of dit.Range) (k, v engine.Tensor) {
	at := r.place(a, text, of)
	t := r.t.Slice(1, at.Start, at.End)
	return t.Index(2, 0), t.Index(2, 1)
}

// all returns keys and values of the whole sequence: [B, L, K/P, D].
func (r kvRows) all() (k, v engine.Tensor) { return r.t.Index(2, 0), r.t.Index(2, 1) }

// attendStored returns the Attend hook of a pipeline stage: fresh K and V go to their places in the store, and queries
// attend to all of it.
func (s *sequence) attendStored(store *kvStore) func(dit.Attention) {
	return func(a dit.Attention) {
		mark := s.arena.Mark()
		defer s.arena.Release(mark)
		kv := s.widen(store, a)
		if s.ulysses.Size() == 1 {
			s.storeOwn(kv, a)
			s.shareFresh(kv, a)
			s.keep(store, kv, a)
			k, v := kv.all()
			s.scores(a.Groups(a.Out), a.Groups(a.Q), k, v, 0, engine.AttentionArgs{Scale: a.Scale})
			return
		}
		heads := s.plan.GroupHeads(a.K.Dim(2))
		got := s.exchange(a, heads)
		freshK, freshV := keysOf(got)
		s.eachPart(s.ring.Rank(), a.ImageOnly, func(at int, text bool, r dit.Range) {
			k, v := kv.slots(a, text, r)
			s.ops.Copy(k, freshK.Slice(1, at, at+r.Len()))
			s.ops.Copy(v, freshV.Slice(1, at, at+r.Len()))
		})
		s.shareFresh(kv, a)
		s.keep(store, kv, a)
		out := s.results(a, got)
		k, v := kv.all()
		s.scores(grouped(out), queriesOf(got), k, v, 0, engine.AttentionArgs{Scale: a.Scale})
		s.giveBack(a, out, heads)
	}
}

// storeOwn normalizes and rotates: queries in place, keys and values straight into the store.
func (s *sequence) storeOwn(kv kvRows, a dit.Attention) {
	dit.EachNorm(a, func(lo, hi int, text bool, at dit.Range, n engine.QKNorm, rope engine.RoPE) {
		k, v := kv.slots(a, text, at)
		q := a.Groups(a.Q.Slice(1, lo, hi))
		dit.QKNormRoPE(s.ops, q, k, v, q, a.K.Slice(1, lo, hi), a.V.Slice(1, lo, hi), n, rope)
	})
}

// eachPart visits the text and image ranges of the ranks at one ring place in the order in which their rows arrive; at
// is the number of rows before.
func (s *sequence) eachPart(ring int, imageOnly bool, visit func(at int, text bool, r dit.Range)) {
	at := 0
	for u := range s.ulysses.Size() {
		rows := s.rows[ring*s.ulysses.Size()+u]
		if !imageOnly && rows.Text.Len() > 0 {
			visit(at, true, rows.Text)
			at += rows.Text.Len()
		}
		if rows.Image.Len() > 0 {
			visit(at, false, rows.Image)
			at += rows.Image.Len()
		}
	}
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
			k, v := kv.slots(a, text, r)
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
