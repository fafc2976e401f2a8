package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// blockScratch adds the buffers of block n, which computes rows r and keeps the rows own of them between projections.
func (o *Partition) blockScratch(s *stack, c plan.Coord, n int, r, own dit.Rows, b int) {
	e, local := o.Spec.Width, o.localHeads(c)*o.Spec.HeadDim
	mark := s.top
	o.modulated(s, n, o.each) // for a timestep that was not announced
	blk := o.Spec.Blocks[n]
	hidden := dit.Held{Rank: c.Tensor, Ranks: o.plan.Tensor}.Share(o.hidden()).Len()
	if blk.Sandwich {
		o.sandwichScratch(s, blk, local, hidden, r, own, b)
		s.top = mark
		return
	}
	l := b * r.Len()
	if blk.Skip >= 0 {
		s.scratch(2 * b * own.Len() * e)
	}
	s.alloc(b * own.Len() * e)
	if blk.Serial {
		o.serialScratch(s, local, hidden, r, own, b)
		s.top = mark
		return
	}
	if blk.AttentionFeedsMLP { // the stream plus the attention's result
		s.alloc(b * own.Len() * e)
	}
	s.alloc(3 * l * local)
	o.attentionScratch(s, blk, local, hidden, r, own, b)
	switch {
	case blk.Kind == dit.Single && blk.AttentionFeedsMLP:
		o.mlpScratch(s, r, own, hidden, b)
	case blk.Kind == dit.Single:
	case blk.Kind == dit.Double:
		if !blk.LastText {
			o.mlpScratch(s, r.TextOnly(), own.TextOnly(), hidden, b)
		}
		o.mlpScratch(s, r.ImageOnly(), own.ImageOnly(), hidden, b)
	default:
		o.mlpScratch(s, r, own, hidden, b)
	}
	s.top = mark
}

// sandwichScratch adds the buffers of a sandwich block.
func (o *Partition) sandwichScratch(s *stack, blk dit.BlockSpec, local, hidden int, r, own dit.Rows, b int) {
	if blk.Kind == dit.Cross {
		r, own = r.ImageOnly(), own.ImageOnly()
	}
	l, kept := b*r.Len(), b*own.Len()*o.Spec.Width
	s.alloc(kept)
	s.alloc(kept)
	mark := s.top
	g := o.Spec.Group()
	s.alloc((g + 2) * l * local)
	s.alloc(g * l * local)
	s.scratch(o.gatheredSize(r, b))
	s.scratch(o.partial(r, own, b)...)
	s.top = mark
	s.scratch(append([]int{l * hidden, l * hidden, o.gatheredSize(r, b)}, o.partial(r, own, b)...)...)
}

// serialScratch adds the buffers, besides normalized rows, of a block of one stream whose MLP follows its attention.
func (o *Partition) serialScratch(s *stack, local, hidden int, r, own dit.Rows, b int) {
	mark, l, g := s.top, b*r.Len(), o.Spec.Group()
	s.scratch(o.zeros(own))
	for _, n := range []int{g * local, local, local, g * local, g * local} { // queries, keys, values, gate, result
		s.alloc(l * n)
	}
	s.scratch(o.gatheredSize(r, b))
	s.scratch(o.partial(r, own, b)...)
	s.top = mark
	o.mlpScratch(s, r, own, hidden, b)
}

// zeros returns the size of the row of zeros that norms without a shift of their own take as shift, if there are rows.
func (o *Partition) zeros(own dit.Rows) int {
	if !o.serial || own.Len() == 0 {
		return 0
	}
	return o.Spec.Width
}

// attentionScratch adds the buffers of the attentions of a block besides queries, keys and values; for a single block
// also those of its MLP.
func (o *Partition) attentionScratch(s *stack, blk dit.BlockSpec, local, hidden int, r, own dit.Rows, b int) {
	l := b * r.Len()
	switch {
	case blk.Kind == dit.Single && !blk.AttentionFeedsMLP:
		s.alloc(l * (local + hidden))
		if blk.Gated {
			s.scratch(l*hidden, o.gatheredSize(r, b))
		} else {
			s.scratch(o.gatheredSize(r, b))
		}
		s.scratch(o.partial(r, own, b)...)
	case blk.Kind == dit.Double:
		s.scratch(o.gatheredSize(r.TextOnly(), b))
		s.scratch(o.gatheredSize(r.ImageOnly(), b))
		s.alloc(l * local)
		if blk.Attends > 1 {
			s.alloc(3 * b * r.Image.Len() * local)
			s.alloc(b * r.Image.Len() * local)
			s.scratch(o.gatheredSize(r.ImageOnly(), b))
		}
	default:
		s.alloc(l * local)
		s.scratch(o.gatheredSize(r, b))
	}
}

// mlpScratch adds the buffers of an MLP over one stream.
func (o *Partition) mlpScratch(s *stack, r, own dit.Rows, hidden, b int) {
	if o.gated {
		s.scratch(append([]int{b * r.Len() * hidden, b * r.Len() * hidden, o.gatheredSize(r, b)}, o.partial(r, own, b)...)...)
		return
	}
	s.scratch(b*r.Len()*hidden, o.gatheredSize(r, b))
	s.scratch(append([]int{b * r.Len() * hidden}, o.partial(r, own, b)...)...)
}

// gatheredSize returns the size of the rows that a gather of the scattered form produces.
func (o *Partition) gatheredSize(r dit.Rows, b int) int {
	if !o.plan.Scatter {
		return 0
	}
	return b * r.Len() * o.Spec.Width
}

// partial returns the sizes of the partial sum of a split projection and, in the scattered form, of the rows kept.
func (o *Partition) partial(r, own dit.Rows, b int) []int {
	switch {
	case o.plan.Tensor == 1:
		return nil
	case o.plan.Scatter:
		return []int{b * r.Len() * o.Spec.Width, b * own.Len() * o.Spec.Width}
	}
	return []int{b * r.Len() * o.Spec.Width}
}
