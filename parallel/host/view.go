package host

import "patchbay/engine"

// On returns a view of this host for work on some of its places, beside work on others: rank r is at places[r], and all
// is the number of places of h. The view shares devices and weights with h. What it acquires stays resident until
// Release, whatever else is loaded meanwhile. On CPUs its ranks share the processors that belong to its places.
func (h *Local) On(places []int, all int) *Local {
	v := &Local{cfg: h.cfg, devices: h.devices, view: true}
	v.cfg.Places = len(places)
	at := func(rank int) int { return places[rank%len(places)] }
	v.cfg.NewOps = func(rank, ranks int) (engine.Ops, error) {
		return h.cfg.NewOps(at(rank), (ranks*all+len(places)-1)/len(places))
	}
	if of := h.cfg.DeviceOf; of != nil {
		v.cfg.DeviceOf = func(rank int) string { return of(at(rank)) }
	}
	return v
}

// Release allows weights that the view has acquired to be dropped if others need the room. Its ranks must not be
// working.
func (h *Local) Release() {
	h.each(func(p *placements) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m := range p.models {
			delete(m.views, h)
		}
	})
}

// pin keeps a placement from being dropped if h is a view. The caller must hold the mutex of the placements.
func (h *Local) pin(m *placement) {
	if h.view {
		m.views[h] = true
	}
}
