package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// attention is a method of attending over tokens that are split over ranks, for one entry of a session. One that only
// changes which heads a rank has wraps another (ulyssesAttention).
type attention interface {
	// Reserve takes from the arena of env what the method keeps of the entry from one evaluation to the next, and returns
	// the rows of the sequence in the order in which it attends to their keys.
	Reserve(env dit.Env, e extent) (keys []dit.Rows)
	// Attend computes one attention of a block with the heads h. The caller gives back what it takes from s.arena.
	Attend(s *sequence, a dit.Attention, h heads)
}

// extent is what a rank attends to of an entry.
type extent struct {
	spec   *dit.Spec
	blocks []int // that the rank runs
	size   plan.Sequence
	ranks  []dit.Rows // of every rank of the sequence, ring outside, in a synchronous evaluation
	batch  int
	heads  int // of keys and values, K/P
}

// inOrder returns all rows in the order of the sequence.
func (e *extent) inOrder() []dit.Rows {
	return []dit.Rows{{Text: dit.Range{End: e.size.Text}, Image: dit.Range{End: e.size.Image}}}
}

// attentionKey names one attention of the model: its block and its number in it.
type attentionKey struct{ block, index int }

// each visits the attentions of the blocks with the number of tokens that they attend to at most.
func (e *extent) each(visit func(at attentionKey, rows int)) {
	for _, b := range e.blocks {
		for k := range e.spec.Blocks[b].Attends {
			visit(attentionKey{b, k}, plan.StoreRows(e.size.Text, e.size.Image, k))
		}
	}
}

// heads is where a method finds the heads of this rank, [B, L, K, G, D] as in dit.Attention.Groups, in one attention:
// all heads of its own rows (ownHeads), or its share of the heads of more rows.
type heads interface {
	// fresh normalizes and rotates the rows that this ring place computes: queries, and keys and values [B, L, K, D].
	fresh() (q, k, v engine.Tensor)
	// freshInto is fresh with keys and values written to their places in kv.
	freshInto(kv kvRows) (q engine.Tensor)
	// results returns where the results of the queries go.
	results() engine.Tensor
	// preface returns its share of dit.Attention.Preface.
	preface() engine.Tensor
}

// ownHeads is all heads of the rows that this rank computes.
type ownHeads struct {
	s *sequence
	a dit.Attention
}

func (h ownHeads) fresh() (q, k, v engine.Tensor) {
	dit.Normalise(h.s.ops, h.a)
	return h.a.Groups(h.a.Q), h.a.K, h.a.V
}

// freshInto normalizes and rotates queries in place, keys and values straight into the store.
func (h ownHeads) freshInto(kv kvRows) (q engine.Tensor) {
	dit.EachNorm(h.a, func(lo, hi int, text bool, at dit.Range, n engine.QKNorm, rope engine.RoPE) {
		k, v := kv.keysAt(h.a, text, at)
		q := h.a.Groups(h.a.Q.Slice(1, lo, hi))
		dit.QKNormRoPE(h.s.ops, q, k, v, q, h.a.K.Slice(1, lo, hi), h.a.V.Slice(1, lo, hi), n, rope)
	})
	return h.a.Groups(h.a.Q)
}

func (h ownHeads) results() engine.Tensor { return h.a.Groups(h.a.Out) }

func (h ownHeads) preface() engine.Tensor { return h.a.Preface }

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

// keysAt returns where rows of an attention belong: views [B, rows, K/P, D] of keys and values.
func (r kvRows) keysAt(a dit.Attention, text bool, of dit.Range) (k, v engine.Tensor) {
	at := r.place(a, text, of)
	t := r.t.Slice(1, at.Start, at.End)
	return t.Index(2, 0), t.Index(2, 1)
}

// all returns keys and values of the whole sequence: [B, L, K/P, D].
func (r kvRows) all() (k, v engine.Tensor) { return r.t.Index(2, 0), r.t.Index(2, 1) }

// hook returns the Attend hook of a method.
func (s *sequence) hook(m attention) func(dit.Attention) {
	return func(a dit.Attention) {
		mark := s.arena.Mark()
		defer s.arena.Release(mark)
		m.Attend(s, a, ownHeads{s, a})
	}
}
