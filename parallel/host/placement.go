package host

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/failure"
	"patchbay/parallel/group"
	"patchbay/parallel/plan"
)

// placements are the models whose weights are resident on one device, or in the memory of this process, under a byte
// budget, least recently used first to go.
type placements struct {
	where   string     // the device; "" is the memory of this process
	ops     engine.Ops // loads and frees
	mu      sync.Mutex
	budget  int64       // of weights; 0: no limit but what the device has
	reserve int64       // of a device, left to others
	models  []placement // most recently used first
}

// placement is one model's weights on the ranks of this process.
type placement struct {
	key   string
	bytes int64
	model dit.Model
	users int // views that have pinned it
}

// Resident describes loaded weights.
type Resident struct {
	Device string // "": the memory of the process
	Key    string
	Bytes  int64
}

// newPlacements makes the placements of the device of ops, which loads and frees.
func newPlacements(cfg *Config, where string, ops engine.Ops) *placements {
	p := &placements{where: where, ops: ops, budget: cfg.MemoryBytes}
	if where != "" {
		p.budget, p.reserve = cfg.DeviceMemory, cfg.Reserve
	}
	return p
}

// limit is the bytes that weights may take: the budget, and no more than the device has left now, those that are
// resident counted in. 0: none.
func (p *placements) limit() (int64, error) {
	device, ok := p.ops.(engine.Located)
	if !ok {
		return p.budget, nil
	}
	free, _, err := device.DeviceMemory()
	if err != nil {
		return 0, &failure.Error{
			Code: failure.LoadFailed, Field: "model",
			Text: "ask " + p.where + " for its memory", Cause: err,
		}
	}
	free = max(free-p.reserve+p.total(), 1)
	if p.budget == 0 {
		return free, nil
	}
	return min(p.budget, free), nil
}

// acquire makes a part of a model resident, pins it and reports whether it had to be loaded. It refuses weights that do
// not fit before reading them.
func (p *placements) acquire(name string, w Weights, need Need, by *pins) (loaded bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, bytes := plan.HeldKey(name, need.Held), need.Bytes
	if i := p.find(key); i >= 0 {
		hit := p.models[i]
		by.add(p, &hit)
		p.models = slices.Insert(slices.Delete(p.models, i, i+1), 0, hit)
		return false, nil
	}
	limit, err := p.limit()
	if err != nil {
		return false, err
	}
	if limit > 0 {
		if bytes > limit {
			return false, p.refuse(fmt.Sprintf("the weights of %s take %d MB", name, bytes>>20), limit)
		}
		for i := len(p.models) - 1; p.total()+bytes > limit && i >= 0; i-- {
			if p.models[i].users == 0 {
				p.drop(i)
			}
		}
		if by != nil && p.total()+bytes > limit {
			return false, p.refuse(fmt.Sprintf("the weights of %s take %d MB beside those in use", name, bytes>>20),
				max(0, limit-p.total()))
		}
	}
	var model dit.Model
	err = group.Recovered("load "+name, func() error {
		var err error
		model, err = w.Load(p.ops, need.Held)
		return err
	})
	if err != nil {
		if e := (*failure.Error)(nil); errors.As(err, &e) {
			return false, e
		}
		return false, &failure.Error{Code: failure.LoadFailed, Field: "model", Text: "load " + name, Cause: err}
	}
	made := placement{key: key, bytes: bytes, model: model}
	by.add(p, &made)
	p.models = slices.Insert(p.models, 0, made)
	return true, nil
}

// refuse says what does not fit, and where.
func (p *placements) refuse(what string, limit int64) error {
	text := fmt.Sprintf("%s, %d MB are allowed", what, limit>>20)
	if p.where != "" {
		text = fmt.Sprintf("%s, %d MB of %s are free for them", what, limit>>20, p.where)
	}
	return &failure.Error{Code: failure.OutOfMemory, Field: "model", Text: text}
}

// acquireAll makes parts of the weights resident together, and reports whether any had to be loaded.
func (p *placements) acquireAll(name string, w Weights, parts []Need, by *pins) (loaded bool, err error) {
	total := int64(0)
	for _, h := range parts {
		total += h.Bytes
	}
	if p.budget > 0 && total > p.budget {
		return false, p.refuse(fmt.Sprintf("the weights of %s take %d MB with this plan", name, total>>20), p.budget)
	}
	for _, h := range parts {
		fresh, err := p.acquire(name, w, h, by)
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

// drop frees placement i.
func (p *placements) drop(i int) {
	p.models[i].model.Close()
	p.models = slices.Delete(p.models, i, i+1)
}

// resident finds the weights of key.
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

// evict drops the placements of key, all if it is empty.
func (p *placements) evict(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.models) - 1; i >= 0; i-- {
		if whole, _, _ := strings.Cut(p.models[i].key, "#tensor"); key == "" || whole == key {
			p.drop(i)
		}
	}
}
