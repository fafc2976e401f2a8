package text

import (
	"patchbay/engine"
	"patchbay/models/weights"
)

// Adapt returns an encoder that computes with the weights of c plus additions (names as in OpenCLIP's set without
// prefix) and shares c's memory. Closing it frees the additions alone; c must stay open as long as it is used. Errors
// are those of weights.Adapt.
func (c *CLIP) Adapt(ops engine.Ops, additions []weights.LowRank) (*CLIP, error) {
	w, loaded, err := weights.Adapt(ops, &c.weights, weights.Options{Model: "clip", Dims: c.dims()}, additions)
	if err != nil {
		return nil, err
	}
	adapted := *c
	adapted.weights, adapted.loaded = *w, loaded
	return &adapted, nil
}

// Adapt is CLIP.Adapt for T5 and mT5.
func (t *T5) Adapt(ops engine.Ops, additions []weights.LowRank) (*T5, error) {
	w, loaded, err := weights.Adapt(ops, &t.weights, weights.Options{Model: "t5", Dims: t.dims()}, additions)
	if err != nil {
		return nil, err
	}
	adapted := *t
	adapted.weights, adapted.loaded = *w, loaded
	return &adapted, nil
}

// Adapt is CLIP.Adapt for BERT.
func (b *BERT) Adapt(ops engine.Ops, additions []weights.LowRank) (*BERT, error) {
	w, loaded, err := weights.Adapt(ops, &b.weights, weights.Options{Model: "bert", Dims: b.dims()}, additions)
	if err != nil {
		return nil, err
	}
	adapted := *b
	adapted.weights, adapted.loaded = *w, loaded
	return &adapted, nil
}

// dims names the sizes of the shape tags.
func (c *CLIP) dims() map[string]int {
	return map[string]int{"E": c.Config.Width, "F": c.Config.MLP, "V": c.Config.Vocab, "P": c.Config.Positions}
}

// dims names the sizes of the shape tags.
func (b *BERT) dims() map[string]int {
	return map[string]int{"E": b.Config.Width, "F": b.Config.MLP, "V": b.Config.Vocab, "P": b.Config.Positions}
}
