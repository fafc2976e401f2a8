package parallel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"patchbay/engine"
	"patchbay/models/dit"
)

// placements are the models whose weights are resident, under a byte budget, least recently used first to go.
type placements struct {
	mu     sync.Mutex
	budget int64
	device Device      // by whose rates stages are cut
	models []placement // most recently used first
}

// placement is one model's weights on the ranks of this process.
type placement struct {
	key   string
	bytes int64
	model dit.Model
}

// ResidentModel describes loaded weights.
type ResidentModel struct {
	Key   string
	Bytes int64
}

func newPlacements(budget int64, device Device) *placements {
	return &placements{budget: budget, device: device}
}

// acquire makes m resident and reports whether it had to be loaded. It refuses weights that do not fit the budget before reading them.
func (p *placements) acquire(ops engine.Ops, m Model, held dit.Held) (loaded bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, bytes := heldKey(m.Key, held), m.heldBytes(held)
	if i := p.find(key); i >= 0 {
		hit := p.models[i]
		p.models = slices.Insert(slices.Delete(p.models, i, i+1), 0, hit)
		return false, nil
	}
	if p.budget > 0 {
		if bytes > p.budget {
			return false, &Error{Code: OutOfMemory, Field: "model", Text: fmt.Sprintf(
				"the weights of %s take %d MB, %d MB are allowed", m.Key, bytes>>20, p.budget>>20)}
		}
		for p.total()+bytes > p.budget && len(p.models) > 0 {
			p.drop(len(p.models) - 1)
		}
	}
	var model dit.Model
	err = Recovered("load "+m.Key, func() error {
		var err error
		model, err = m.Load(ops, held)
		return err
	})
	if err != nil {
		if e := (*Error)(nil); errors.As(err, &e) {
			return false, e
		}
		return false, &Error{Code: LoadFailed, Field: "model", Text: "load " + m.Key, Cause: err}
	}
	p.models = slices.Insert(p.models, 0, placement{key, bytes, model})
	return true, nil
}

// heldBytes estimates the memory of a part of the weights. Parts of blocks come with room for two blocks, where they are brought together.
func (m Model) heldBytes(held dit.Held) int64 {
	bytes := m.WeightBytes / int64(max(held.Ranks, 1))
	if m.Spec != nil && m.Spec.Params > 0 && held.Blocks != nil {
		bytes = int64(float64(bytes) * float64(heldParams(m.Spec, held)) / float64(m.Spec.Params))
	}
	if held.Parts <= 1 || m.Spec == nil || m.Spec.Params == 0 {
		return bytes
	}
	largest := int64(0)
	for _, b := range m.Spec.Blocks {
		largest = max(largest, b.Params)
	}
	return bytes/int64(held.Parts) + int64(2*float64(bytes)*float64(largest)/float64(m.Spec.Params))
}

// acquireAll makes every part of the weights resident that ranks of a plan hold, and reports whether any had to be loaded.
func (p *placements) acquireAll(ops engine.Ops, m Model, plan Plan) (loaded bool, err error) {
	list, total := plan.holdings(m.Spec, p.device), int64(0)
	for _, h := range list {
		total += m.heldBytes(h)
	}
	if p.budget > 0 && total > p.budget {
		return false, &Error{Code: OutOfMemory, Field: "model", Text: fmt.Sprintf(
			"the weights of %s take %d MB with plan %s, %d MB are allowed", m.Key, total>>20, plan, p.budget>>20)}
	}
	for _, h := range list {
		fresh, err := p.acquire(ops, m, h)
		if err != nil {
			return loaded, err
		}
		loaded = loaded || fresh
	}
	return loaded, nil
}

// heldKey names a part of a model's weights.
func heldKey(key string, held dit.Held) string {
	if held.Ranks <= 1 && held.Parts <= 1 && held.Blocks == nil {
		return key
	}
	return fmt.Sprintf("%s#tensor%d/%d#part%d/%d%s", key, held.Rank, max(held.Ranks, 1), held.Part, max(held.Parts, 1), stageName(held))
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

func (p *placements) list() []ResidentModel {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]ResidentModel, len(p.models))
	for i, m := range p.models {
		out[i] = ResidentModel{Key: m.key, Bytes: m.bytes}
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

func (p *placements) clear() { p.evict("") }
