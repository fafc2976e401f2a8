package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// sequence is the tokens of one entry in one evaluation, as ranks split them: a Ulysses group computes adjacent rows,
// and groups follow each other around a ring.
type sequence struct {
	ops     engine.Ops
	arena   *engine.Arena // exchange buffers, in stack order
	ulysses comm.Comm
	ring    comm.Comm  // with all stages in a spread evaluation
	rows    []dit.Rows // of every rank of the sequence, ring outside
	whole   bool       // all tokens are computed: a synchronous evaluation
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

// scoresAfter is scores over the keys of a preface too, if there is one.
func (s *sequence) scoresAfter(preface, o, q, k, v engine.Tensor, key int, args engine.AttentionArgs) {
	dit.AttendAfter(s.ops, s.arena, preface, o, q, args, func(args engine.AttentionArgs) {
		s.scores(o, q, k, v, key, args)
	})
}

// scores is dit.Attend with the biases of the entry. Queries q [B, L, K, G, D] are those of this ring place; key is the
// index of the first key in the table.
func (s *sequence) scores(o, q, k, v engine.Tensor, key int, args engine.AttentionArgs) {
	if s.bias == nil {
		dit.Attend(s.ops, o, q, k, v, args)
		return
	}
	lse, keys := args.LSE, k.Dim(1)
	type stretch struct{ lo, hi, row int }
	var todo []stretch
	s.eachPart(s.ring.Rank(), false, func(at int, text bool, of dit.Range) {
		s.bias.each(text, of, func(lo, hi, row int) {
			if n := len(todo); n > 0 && todo[n-1].row == row {
				todo[n-1].hi = at + hi
				return
			}
			todo = append(todo, stretch{at + lo, at + hi, row})
		})
	})
	for _, r := range todo {
		if args.Bias = (engine.Tensor{}); r.row >= 0 {
			row := s.bias.rows.Slice(0, r.row, r.row+1).Slice(1, key, key+keys).Unsqueeze(0)
			args.Bias = row.Broadcast(0, q.Dim(2)).Broadcast(1, r.hi-r.lo)
		}
		if !lse.IsZero() {
			args.LSE = lse.Slice(3, r.lo, r.hi)
		}
		dit.Attend(s.ops, o.Slice(1, r.lo, r.hi), q.Slice(1, r.lo, r.hi), k, v, args)
	}
}
