package parallel

import (
	"fmt"
	"maps"
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/failure"
	"patchbay/parallel/plan"
)

// acquireNets makes the weights of control nets resident beside those of the model.
func (e *Engine) acquireNets(r *Request, split plan.Plan) error {
	nets := map[string]Model{}
	for _, b := range r.Branches {
		for _, entry := range b.Entries {
			for _, c := range entry.Control {
				nets[c.Net.Key] = c.Net
			}
		}
	}
	held := func(at plan.Coord) dit.Held { return split.BesideHeld(at.Tensor) }
	evicted := false
	for pass := range 2 { // in the second all are there, unless they have driven each other out
		for _, key := range slices.Sorted(maps.Keys(nets)) {
			loaded, err := e.hold(nets[key], split, held)
			if err != nil {
				return err
			}
			evicted = evicted || loaded && pass > 0
		}
		if len(nets) == 0 {
			return nil
		}
		loaded, err := e.acquire(r.Model, split)
		if err != nil {
			return err
		}
		evicted = evicted || loaded
	}
	if !evicted {
		return nil
	}
	return &failure.Error{Code: failure.OutOfMemory, Field: "model", Text: fmt.Sprintf("the weights of %s and of %d "+
		"control nets do not fit into memory together: use fewer nets, or narrower weights", r.Model.Key, len(nets))}
}
