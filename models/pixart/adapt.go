package pixart

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/weights"
)

// Adapt returns a model that computes with the weights of m plus additions, and shares the weights with m. Closing it frees the additions alone; m must stay
// open as long as it is used. Errors are those of weights.Adapt.
func (m *Model) Adapt(ops engine.Ops, additions []weights.LowRank) (dit.Model, error) {
	adapted, err := m.mem.Clone(func() (err error) { return nil })
	return adapted, err
}
