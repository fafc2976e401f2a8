package node

import (
	"context"
	"time"

	"patchbay/models/tokenizer"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/lru"
	"patchbay/parallel"
)

// resident is something with weights that a Runner keeps between jobs.
type resident interface {
	Bytes() int64
	Close()
}

// store keeps what handles have loaded between jobs: weights of encoders and autoencoders, the weights that handles with different adapters share, and
// tokenizers. It borrows the devices from the engine. Safe for concurrent use.
type store struct {
	engine  *parallel.Engine // nil: nothing can be loaded
	compute Compute
	roots   files.Roots
	weights *lru.Cache[resident]
	shared  *shared
	// vocabularies are tokenizers by encoder; each counts as one.
	vocabularies *lru.Cache[*tokenizer.Tokenizer]
}

// newStore returns an empty store; weightBytes bounds resident text encoders and autoencoders.
func newStore(engine *parallel.Engine, compute Compute, roots files.Roots, weightBytes int64) *store {
	return &store{
		engine: engine, compute: compute, roots: roots, weights: lru.New(weightBytes, resident.Close), shared: newShared(),
		vocabularies: lru.New[*tokenizer.Tokenizer](16, nil),
	}
}

// drop gives up all weights that the store holds.
func (s *store) drop() { s.weights.Clear() }

// use is what a node needs to work with handles.
type use struct {
	ctx   context.Context
	store *store
	// loading is where seconds spent with loading weights are added.
	loading *float64
}

// do runs f on the device.
func (u use) do(what string, f func(*parallel.Local) error) error {
	if u.store == nil || u.store.engine == nil {
		return fault.New(fault.CodeInternal, "%s needs a device, and this runner has none", what)
	}
	return u.store.engine.Do(u.ctx, what, f)
}

// sample runs a request on a model, with the weights and adapters of its handle.
func (u use) sample(req *parallel.Request, m *Model, observe func(parallel.Progress) error) (*parallel.Result, error) {
	s := u.store
	if s == nil || s.engine == nil {
		return nil, fault.New(fault.CodeInternal, "sampling needs a device, and this runner has none")
	}
	req.Compute = s.compute.of(s.engine.Name(), m)
	defer s.share(&req.Model, m)()
	return s.engine.Sample(u.ctx, req, observe)
}

// lent takes weights from the store, or loads them and keeps them there. It must be called inside do: loading uses the device.
func lent[T resident](u use, key string, load func() (T, error)) (T, error) {
	if w, ok := u.store.weights.Get(key); ok {
		if t, ok := w.(T); ok {
			return t, nil
		}
	}
	began := time.Now()
	t, err := load()
	*u.loading += time.Since(began).Seconds()
	if err != nil {
		return t, err
	}
	u.store.weights.Put(key, t, t.Bytes())
	return t, nil
}
