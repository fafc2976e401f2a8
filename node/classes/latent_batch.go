package classes

import (
	"slices"

	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
)

// latentBatchClasses are the rows that change how many latents a batch has.
func latentBatchClasses() []graph.Class {
	return []graph.Class{
		{
			Name: "RepeatLatentBatch", Display: "Repeat Latent Batch", Module: "nodes", Category: "model/latent/batch",
			Aliases: "duplicate latent, clone latent",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"),
				graph.Int("amount", "", 1, 1, 64, 0),
			},
			Outputs: graph.Slots("LATENT"), Run: repeatLatent,
		},
		{
			Name: "LatentFromBatch", Display: "Get Latent From Batch", Module: "nodes", Category: "model/latent/batch",
			Aliases:     "select from batch, pick latent, batch subset",
			Description: "Takes some latents of a batch; they keep the noise that they would have had in it.",
			Inputs: []graph.Input{
				graph.Bare("samples", "LATENT"), graph.Int("batch_index", "", 0, -16384, 16384, 0),
				graph.Int("length", "", 1, 1, 64, 0),
			},
			Outputs: graph.Slots("LATENT"), Run: latentFromBatch,
		},
	}
}

// repeatLatent repeats the whole batch; the copies get noise of their own: batch_index goes on behind the largest.
func repeatLatent(c *graph.Call) ([]any, error) {
	l, amount := c.Layers("samples"), c.Whole("amount")
	s := l.Samples
	if err := checkSize("amount", amount, s.B, s.C, s.Y, s.X); err != nil {
		return nil, err
	}
	s.B, s.Data = amount*s.B, slices.Repeat(s.Data, amount)
	out := l.With(s)
	if m := l.NoiseMask; m != nil && m.B > 1 {
		out.NoiseMask = &picture.Mask{B: amount * m.B, Y: m.Y, X: m.X, Data: slices.Repeat(m.Data, amount)}
	}
	if len(l.BatchIndex) == 0 {
		return []any{out}, nil
	}
	lo, hi := slices.Min(l.BatchIndex), slices.Max(l.BatchIndex)
	if last := hi + (amount-1)*(hi-lo+1); last > maxBatchIndex {
		return nil, fault.Bad("amount", "batch_index would reach %d, at most %d is allowed", last, maxBatchIndex)
	}
	out.BatchIndex = nil
	for i := range amount {
		for _, n := range l.BatchIndex {
			out.BatchIndex = append(out.BatchIndex, n+i*(hi-lo+1))
		}
	}
	return []any{out}, nil
}

// maxBatchIndex bounds how far the noise of a run is drawn ahead for one item (importLatent has the same limit).
const maxBatchIndex = 1 << 20

func latentFromBatch(c *graph.Call) ([]any, error) {
	l := c.Layers("samples")
	s := l.Samples
	from := fromIndex(c.Whole("batch_index"), s.B)
	length := min(s.B-from, c.Whole("length"))
	item := s.C * s.Y * s.X
	all := s.B
	s.B, s.Data = length, s.Data[from*item:(from+length)*item]
	out := l.With(s)
	if m := l.NoiseMask; m != nil && m.B > 1 {
		out.NoiseMask = m.Items(from, length, all)
	}
	if l.BatchIndex != nil {
		lo, hi := sliced(len(l.BatchIndex), from, from+length)
		out.BatchIndex = l.BatchIndex[lo:hi]
		return []any{out}, nil
	}
	for i := range length {
		out.BatchIndex = append(out.BatchIndex, from+i)
	}
	return []any{out}, nil
}
