package host

import "patchbay/engine"

// On is a view of this host for work on some of its places, beside work on others: rank r is at places[r], of so many
// in all. Devices and weights are those of h. What the view acquires stays resident until Release, whatever else is
// loaded meanwhile. Ranks on the processors share those that belong to their places.
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

// Release lets weights go that the view has acquired, where others need the room. None of its ranks may be at work.
func (h *Local) Release() {
	h.each(func(p *placements) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m := range p.models {
			delete(m.views, h)
		}
	})
}

// pin keeps a placement for a view; the lock of the placements is held.
func (h *Local) pin(m *placement) {
	if h.view {
		m.views[h] = true
	}
}
