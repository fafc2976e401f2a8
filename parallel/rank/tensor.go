package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// Tensor parallelism (Megatron-LM, arXiv:1909.08053, sec. 3) cuts heads and MLP columns over a group and adds up
// partial sums after each product that is cut along its input. In the form of that paper every rank of the group keeps
// all rows, and an all-reduce makes the sums. In the scattered form (arXiv:2205.05198, sec. 4.2.2) the group shares the
// rows between products: an all-gather before each product that is cut along its output, a reduce-scatter after each
// that is cut along its input. The bytes are the same; rows kept between products, element-wise work, embedding and
// head are 1/P.

// scattered moves the rows of one entry between the ranks of a tensor group. Each batch item and stream travels
// separately, straight from where it is computed to where it is read, so that nothing is copied on the way.
type scattered struct {
	tensor comm.Comm
	parts  []dit.Rows // rows of each rank of the group
}

// newScattered splits wide, the rows of this place in the sequence, over the group.
func newScattered(p plan.Plan, tensor comm.Comm, wide dit.Rows) *scattered {
	s := &scattered{tensor: tensor}
	for t := range tensor.Size() {
		s.parts = append(s.parts, p.Kept(wide, t))
	}
	return s
}

// gather implements dit.Env.Gather: [B, L/P, E] -> [B, L, E].
func (s *scattered) gather(dst, src engine.Tensor, of dit.Rows) {
	s.each(dst, src, of, func(whole, part engine.Tensor, counts []int) {
		s.tensor.Run(comm.NewAllGather(whole, part, counts))
	})
}

// scatter implements dit.Env.Scatter: [B, L, E] -> [B, L/P, E].
func (s *scattered) scatter(dst, src engine.Tensor, of dit.Rows) {
	s.each(src, dst, of, func(whole, part engine.Tensor, counts []int) {
		s.tensor.Run(comm.NewReduceScatter(part, whole, counts))
	})
}

// each visits batch items and streams with the rows [L, E] of all ranks, the rows [l, E] of this one, and how many
// values each rank has of them.
func (s *scattered) each(whole, part engine.Tensor, of dit.Rows, visit func(whole, part engine.Tensor, counts []int)) {
	e, me := whole.Dim(2), s.parts[s.tensor.Rank()]
	for b := range whole.Dim(0) {
		at, mine := 0, 0 // rows of earlier streams
		stream := func(n int, rows func(dit.Rows) dit.Range) {
			if n == 0 {
				return
			}
			counts := make([]int, len(s.parts))
			for t, p := range s.parts {
				counts[t] = rows(p).Len() * e
			}
			local := rows(me).Len()
			visit(whole.Index(0, b).Slice(0, at, at+n), part.Index(0, b).Slice(0, mine, mine+local), counts)
			at, mine = at+n, mine+local
		}
		stream(of.Text.Len(), func(r dit.Rows) dit.Range { return r.Text })
		stream(of.Image.Len(), func(r dit.Rows) dit.Range { return r.Image })
	}
}
