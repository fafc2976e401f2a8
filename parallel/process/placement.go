package process

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

// placements is the models whose weights are resident on one device, or in the memory of this process, within a byte
// budget. The least recently used ones are dropped first.
type placements struct {
	where   string     // the device; "" is the memory of this process
	ops     engine.Ops // loads and frees
	mu      sync.Mutex
	budget  int64       // for weights; 0: only limited by the device
	reserve int64       // bytes of the device that are left to others
	models  []placement // most recently used first
}

// placement is one resident part of a model's weights.
type placement struct {
	key    string
	bytes  int64
	model  dit.Model
	shares map[*Local]bool // that have acquired it, so that it must not be dropped
}

// Resident describes loaded weights.
type Resident struct {
	Device string // "": the memory of the process
	Key    string
	Bytes  int64
}

// newPlacements makes the placements of a device; ops loads and frees there.
func newPlacements(cfg *Config, where string, ops engine.Ops) *placements {
	p := &placements{where: where, ops: ops, budget: cfg.MemoryBytes}
	if where != "" {
		p.budget, p.reserve = cfg.DeviceMemory, cfg.Reserve
	}
	return p
}

// limit returns how many bytes weights, and what is taken beside them, may have: the budget, but no more than the
// device has left now if resident weights were dropped. 0: no limit.
func (p *placements) limit() (int64, error) {
	device, ok := p.ops.(engine.Located)
	if !ok {
		return p.budget, nil
	}
	free, _, err := device.DeviceMemory()
	if err != nil {
		return 0, fault.Wrap(fault.BadCheckpoint, "model", fmt.Errorf("model: ask %s for its memory: %w", p.where, err))
	}
	free = max(free-p.reserve+p.total(), 1)
	if p.budget == 0 {
		return free, nil
	}
	return min(p.budget, free), nil
}

// acquire makes a part of a model resident, pinned if by is a view, and reports whether it had to be loaded. It drops
// the least recently used models until the part and extra bytes more fit within limit (0: none). The caller must hold
// p.mu.
func (p *placements) acquire(name string, w Weights, need Need, limit, extra int64, by *Local) (bool, error) {
	key, bytes := plan.HeldKey(name, need.Held), need.Bytes
	hit := p.find(key)
	if hit >= 0 {
		bytes = 0
		used := p.models[hit]
		by.pin(&used)
		p.models = slices.Insert(slices.Delete(p.models, hit, hit+1), 0, used)
	}
	if limit > 0 {
		for i := len(p.models) - 1; p.total()+bytes+extra > limit && i >= 0; i-- {
			if len(p.models[i].shares) == 0 && p.models[i].key != key {
				p.drop(i)
			}
		}
		if by.share && p.total()+bytes+extra > limit {
			beside := plan.ShownKey(name) + " beside those in use"
			return false, p.refuse(beside, bytes, extra, need.Streamed, max(0, limit-p.total()))
		}
	}
	if hit >= 0 {
		return false, nil
	}
	var model dit.Model
	err := scope.Recovered("load "+plan.ShownKey(name), func() error {
		var err error
		model, err = w.Load(p.ops, need.Held)
		return err
	})
	if err != nil {
		if e, ok := errors.AsType[*fault.Error](err); ok && e.Code != fault.FileChanged {
			return false, e
		}
		return false, fault.Wrap(fault.BadCheckpoint, "model", fmt.Errorf("model: load %s: %w", plan.ShownKey(name), err))
	}
	if sized, ok := model.(interface{ Bytes() int64 }); ok && sized.Bytes() > 0 {
		bytes = sized.Bytes() // the actual size, not the estimate
	}
	made := placement{key, bytes, model, map[*Local]bool{}}
	by.pin(&made)
	p.models = slices.Insert(p.models, 0, made)
	return true, nil
}

// refuse returns an error that says what does not fit, and where. It wraps engine.ErrOutOfMemory if the device has no
// more, because others may then give back what they keep there.
func (p *placements) refuse(name string, weights, extra, streamed, limit int64) error {
	text := fmt.Sprintf("the weights of %s take %d MB", name, weights>>20)
	if extra > 0 {
		text += fmt.Sprintf(", activations and buffers beside them %d MB", extra>>20)
	}
	if streamed > 0 {
		text += fmt.Sprintf(", without %d MB that come from host memory", streamed>>20)
	}
	if p.where == "" {
		return fault.Named(fault.OutOfMemory, "model", "%s, %d MB are allowed", text, limit>>20)
	}
	text = fmt.Sprintf("model: %s, %d MB of %s are free for them", text, limit>>20, p.where)
	if limit < p.budget || p.budget == 0 {
		return fault.Wrap(fault.OutOfMemory, "model", fmt.Errorf("%s: %w", text, engine.ErrOutOfMemory))
	}
	return fault.At(fault.OutOfMemory, "model", "%s", text)
}

// acquireAll makes parts of the weights resident together, and reports whether any had to be loaded. If they do not fit
// with extra bytes more, it refuses them before reading any.
func (p *placements) acquireAll(name string, w Weights, parts []Need, extra int64, by *Local,
) (loaded bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit, missing, total, streamed := p.budget, false, int64(0), int64(0)
	for _, h := range parts {
		total, streamed = total+h.Bytes, streamed+h.Streamed
		missing = missing || p.find(plan.HeldKey(name, h.Held)) < 0
	}
	if missing { // otherwise what is beside them may be in use already, and so not free
		if limit, err = p.limit(); err != nil {
			return false, err
		}
	}
	if limit > 0 && total+extra > limit {
		return false, p.refuse(plan.ShownKey(name), total, extra, streamed, limit)
	}
	for _, h := range parts {
		fresh, err := p.acquire(name, w, h, limit, extra, by)
		if err != nil {
			return loaded, err
		}
		loaded = loaded || fresh
	}
	return loaded, nil
}

func (p *placements) find(key string) int {
	return slices.IndexFunc(p.models, func(m placement) bool { return m.key == key })
}

func (p *placements) total() (n int64) {
	for _, m := range p.models {
		n += m.bytes
	}
	return n
}

func (p *placements) drop(i int) {
	p.models[i].model.Close()
	p.models = slices.Delete(p.models, i, i+1)
}

// resident returns the weights of key.
func (p *placements) resident(key string) (dit.Model, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(key); i >= 0 {
		return p.models[i].model, true
	}
	return nil, false
}

func (p *placements) list() []Resident {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Resident, len(p.models))
	for i, m := range p.models {
		out[i] = Resident{Device: p.where, Key: m.key, Bytes: m.bytes}
	}
	return out
}

// evict drops the placements of key, or all if it is empty.
func (p *placements) evict(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.models) - 1; i >= 0; i-- {
		if whole, _, _ := strings.Cut(p.models[i].key, "#tensor"); key == "" || whole == key {
			p.drop(i)
		}
	}
}
