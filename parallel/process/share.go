package process

import "patchbay/engine"

// Share returns a share of this process for work on some of its places, beside work on others: rank r is at places[r],
// and all is the number of places of h. It has the devices and weights of h. What it acquires stays resident until
// Release, whatever else is loaded meanwhile. On CPUs its ranks have the processors that belong to its places.
func (h *Local) Share(places []int, all int) *Local {
	v := &Local{cfg: h.cfg, devices: h.devices, share: true}
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

// Beside returns a view of this process for work beside ranks: what it keeps stays resident until Release.
func (h *Local) Beside() *Local { return &Local{cfg: h.cfg, devices: h.devices, share: true} }

// Release allows weights that the share has acquired to be dropped if others need the room. Its ranks must not be
// working.
func (h *Local) Release() {
	h.each(func(p *placements) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m := range p.models {
			delete(m.shares, h)
		}
	})
}

// pin keeps a placement from being dropped if h is a share. The caller must hold the mutex of the placements.
func (h *Local) pin(m *placement) {
	if h.share {
		m.shares[h] = true
	}
}
