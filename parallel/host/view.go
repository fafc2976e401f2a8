package host

import (
	"slices"
	"sync"

	"patchbay/engine"
)

// On is a view of this host for work on some of its places, beside work on others: rank r is at places[r], of so many
// in all. Devices and weights are those of h. What the view acquires stays resident until Release, whatever else is
// loaded meanwhile. Ranks on the processors share those that belong to their places.
func (h *Local) On(places []int, all int) *Local {
	v := &Local{cfg: h.cfg, devices: h.devices, pins: &pins{}}
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
func (h *Local) Release() { h.pins.release() }

// pins are the placements that a view keeps from being dropped. A nil one keeps none.
type pins struct {
	mu   sync.Mutex
	held []pin
}

type pin struct {
	of  *placements
	key string
}

// add pins a placement, once; the lock of the placements is held.
func (p *pins) add(of *placements, m *placement) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := (pin{of, m.key}); !slices.Contains(p.held, one) {
		p.held = append(p.held, one)
		m.users++
	}
}

func (p *pins) release() {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	for _, one := range held {
		one.of.mu.Lock()
		if i := one.of.find(one.key); i >= 0 {
			one.of.models[i].users--
		}
		one.of.mu.Unlock()
	}
}
