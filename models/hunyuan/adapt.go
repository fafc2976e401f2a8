package hunyuan

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/weights"
)

// Adapt returns a model that computes with the weights of m plus additions and shares m's memory. Closing it frees the
// additions alone; m must stay open as long as it is used. Errors are those of weights.Adapt.
func (m *Model) Adapt(ops engine.Ops, additions []weights.LowRank) (dit.Model, error) {
	net, mem, err := weights.Adapt(ops, m.net, m.cfg.options(m.held), additions)
	if err != nil {
		return nil, err
	}
	adapted := *m
	adapted.net, adapted.mem = net, mem
	return &adapted, nil
}
