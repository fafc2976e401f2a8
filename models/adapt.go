package models

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/weights"
)

// adaptable is what every family can do besides dit.Model.
type adaptable interface {
	Adapt(ops engine.Ops, additions []weights.LowRank) (dit.Model, error)
}

// Adapt returns a model that computes with the weights of m plus additions (LoRA) and shares m's memory: nothing is
// merged, nothing of m is packed again. m is a model that Diffusion.Load gave, whole or a part; m must stay open as
// long as the result is used, and closing the result frees the additions alone. Errors: names and shapes that do not
// fit, no memory.
func Adapt(ops engine.Ops, m dit.Model, additions []weights.LowRank) (dit.Model, error) {
	a, ok := m.(adaptable)
	if !ok {
		return nil, fmt.Errorf("adapt %s: models of this family take no adapters", m.Spec().Family)
	}
	return a.Adapt(ops, additions)
}
