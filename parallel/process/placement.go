package process

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

// placements is all that is resident on one device, or in the memory of this process, within one byte budget: parts of
// diffusion models, and what work beside ranks keeps. The least recently used is dropped first, and only as much as is
// needed.
type placements struct {
	where   string     // the device; "" is the memory of this process
	ops     engine.Ops // loads and frees
	copies  *datafile.Copies
	mu      sync.Mutex
	budget  int64       // 0: only limited by the device
	room    int64       // what may stay when something is loaded; 0: the budget
	reserve int64       // bytes of the device that are left to others
	models  []placement // most recently used first
}

// placement is one resident part of a model's weights, or something else that is kept.
type placement struct {
	key    string
	bytes  int64
	of     Kept
	beside bool            // not of a diffusion model
	part   string          // the key without the number of blocks that are brought
	shelf  *dit.Shelf      // of its matrices; nil: of none
	shares map[*Local]bool // that have acquired it, so that it must not be dropped
}

// Resident describes loaded weights.
type Resident struct {
	Device string // "": the memory of the process
	Key    string
	Bytes  int64
	Beside bool // not of a diffusion model: what work beside ranks keeps
}

// newPlacements makes the placements of a device; ops loads and frees there.
func newPlacements(cfg *Config, where string, ops engine.Ops) *placements {
	p := &placements{where: where, ops: ops, copies: cfg.Copies, budget: cfg.MemoryBytes, room: cfg.Room}
	if where != "" {
		p.budget, p.room, p.reserve = cfg.DeviceMemory, 0, cfg.Reserve
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

// most returns how many bytes may be resident together after something has been loaded, within limit. 0: any number.
func (p *placements) most(limit int64) int64 {
	if p.room > 0 && limit > 0 {
		return min(p.room, limit)
	}
	return limit
}

// makeRoom drops what was used least recently until need bytes more fit within most (0: any number), but nothing that
// is in use, nor key, nor what may stay because something that was used later has to go too. The caller must hold p.mu.
func (p *placements) makeRoom(key string, need, most int64) {
	var drop []int // descending
	freed, over := int64(0), p.total()+need-most
	for i := len(p.models) - 1; most > 0 && freed < over && i >= 0; i-- {
		if m := &p.models[i]; len(m.shares) == 0 && m.key != key {
			drop, freed = append(drop, i), freed+m.bytes
		}
	}
	for k := len(drop) - 1; k >= 0; k-- {
		if bytes := p.models[drop[k]].bytes; freed-bytes >= over {
			drop, freed = slices.Delete(drop, k, k+1), freed-bytes
		}
	}
	for _, i := range drop {
		p.drop(i)
	}
}

// touch marks a placement as used last. The caller must hold p.mu.
func (p *placements) touch(i int, by *Local) {
	used := p.models[i]
	by.pin(&used)
	p.models = slices.Insert(slices.Delete(p.models, i, i+1), 0, used)
}

// put records what was loaded, with its actual size if it knows that instead of the estimate, and drops more if that is
// larger. The caller must hold p.mu.
func (p *placements) put(m placement, most int64, by *Local) {
	if sized, ok := m.of.(interface{ Bytes() int64 }); ok && sized.Bytes() > 0 {
		m.bytes = sized.Bytes()
	}
	m.shares = map[*Local]bool{}
	by.pin(&m)
	p.models = slices.Insert(p.models, 0, m)
	p.makeRoom(m.key, 0, most)
}

// acquire makes a part of a model resident, pinned if by is a view, and reports whether it had to be loaded. It drops
// the least recently used until the part and extra bytes more fit within limit (0: none). The caller must hold p.mu.
func (p *placements) acquire(name string, w Weights, need Need, limit, extra int64, by *Local) (bool, error) {
	key, bytes := plan.HeldKey(name, need.Held), need.Bytes
	hit := p.find(key)
	if hit >= 0 {
		bytes = 0
		p.touch(hit, by)
	}
	most := p.most(limit)
	part, shelf := p.shelf(name, need.Held)
	if over := most > 0 && p.total()+bytes+extra > most; over && hit < 0 {
		shelf.Keep(p.ops, true) // what stays of the blocks is not read again
		defer shelf.Keep(p.ops, false)
		p.dropPart(part)
	}
	p.makeRoom(key, bytes+extra, most)
	if by.share && limit > 0 && p.total()+bytes+extra > limit {
		beside := plan.ShownKey(name) + " beside those in use"
		return false, p.refuse(beside, bytes, extra, need.Streamed, max(0, limit-p.total()))
	}
	if hit >= 0 {
		return false, nil
	}
	var model dit.Model
	err := scope.Recovered("load "+plan.ShownKey(name), func() error {
		var err error
		model, err = w.Load(shelf.On(p.ops), need.Held)
		return err
	})
	if err != nil {
		if e, ok := errors.AsType[*fault.Error](err); ok && e.Code != fault.FileChanged {
			return false, e
		}
		return false, fault.Wrap(fault.BadCheckpoint, "model", fmt.Errorf("model: load %s: %w", plan.ShownKey(name), err))
	}
	p.put(placement{key: key, bytes: bytes, of: model, part: part, shelf: shelf}, most, by)
	return true, nil
}

// shelf returns the key of a part of a model whatever the number of blocks that are brought, and the shelf that its
// placements share. The caller must hold p.mu.
func (p *placements) shelf(name string, held dit.Held) (part string, s *dit.Shelf) {
	held.Stream = 0
	part = plan.HeldKey(name, held)
	for _, m := range p.models {
		if m.part == part && m.shelf != nil {
			return part, m.shelf
		}
	}
	slice := dit.Held{Rank: held.Rank, Ranks: held.Ranks, Part: held.Part, Parts: held.Parts} // whatever the stage
	return part, dit.NewShelf(plan.HeldKey(name, slice), p.copies)
}

// dropPart drops the placements of a part of a model that nothing uses. The caller must hold p.mu.
func (p *placements) dropPart(part string) {
	for i := len(p.models) - 1; i >= 0; i-- {
		if m := &p.models[i]; m.part == part && len(m.shares) == 0 {
			p.drop(i)
		}
	}
}

// keep is Local.Keep on one device.
func (p *placements) keep(w Want, by *Local) (kept Kept, loaded bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hit := p.find(w.Key)
	if hit >= 0 && w.Buffer && p.models[hit].bytes < w.Bytes() {
		p.drop(hit)
		hit = -1
	}
	if hit >= 0 {
		p.touch(hit, by)
		return p.models[0].of, false, nil
	}
	limit, err := p.limit()
	if err != nil {
		return nil, false, err
	}
	bytes, most, room := w.Bytes(), p.most(limit), w.Room
	if most > 0 && w.Room > 0 {
		room = max(1, min(room, most-p.inUse()))
		bytes = min(bytes, room)
	}
	if left := limit - p.inUse(); limit > 0 && !w.Buffer && bytes > left {
		return nil, false, p.refuse(plan.ShownKey(w.Key), bytes, 0, 0, max(0, left))
	}
	p.makeRoom(w.Key, bytes, most)
	err = scope.Recovered("load "+plan.ShownKey(w.Key), func() (err error) {
		kept, err = w.Load(room)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	p.put(placement{key: w.Key, bytes: bytes, of: kept, beside: true}, most, by)
	return kept, true, nil
}

// inUse returns the bytes that must not be dropped. The caller must hold p.mu.
func (p *placements) inUse() (n int64) {
	for _, m := range p.models {
		if len(m.shares) > 0 {
			n += m.bytes
		}
	}
	return n
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
	p.models[i].of.Close()
	p.models = slices.Delete(p.models, i, i+1)
}

// resident returns the weights of key.
func (p *placements) resident(key string) (dit.Model, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(key); i >= 0 {
		model, ok := p.models[i].of.(dit.Model)
		return model, ok
	}
	return nil, false
}

func (p *placements) list() []Resident {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Resident, len(p.models))
	for i, m := range p.models {
		out[i] = Resident{Device: p.where, Key: m.key, Bytes: m.bytes, Beside: m.beside}
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
