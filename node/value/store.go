package value

import (
	"context"
	"time"

	"patchbay/models/source"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/lru"
	"patchbay/parallel"
)

// resident is something with weights that a Store keeps between jobs.
type resident interface {
	Bytes() int64
	Close()
}

// Store keeps what handles have loaded between jobs: weights of encoders and autoencoders, the weights that handles
// with different adapters share, and tokenizers. It borrows the devices from the engine. Safe for concurrent use.
type Store struct {
	engine  *parallel.Engine // nil: nothing can be loaded
	compute Compute
	roots   files.Roots
	weights *lru.Cache[resident]
	loader  *source.Loader
	// vocabularies are tokenizers by encoder; each counts as one.
	vocabularies *lru.Cache[*tokenizer.Tokenizer]
}

// NewStore returns an empty store; weightBytes bounds resident text encoders and autoencoders.
func NewStore(engine *parallel.Engine, compute Compute, roots files.Roots, weightBytes int64) *Store {
	return &Store{
		engine: engine, compute: compute, roots: roots, weights: lru.New(weightBytes, resident.Close),
		loader:       &source.Loader{},
		vocabularies: lru.New[*tokenizer.Tokenizer](16, nil),
	}
}

// Drop gives up all weights that the store holds; those of diffusion models are the engine's.
func (s *Store) Drop() { s.weights.Clear() }

// Free drops all weights, those of diffusion models too, when nobody uses them.
func (s *Store) Free() {
	if s.engine == nil {
		s.Drop()
		return
	}
	_ = s.engine.Do(context.Background(), "free", func(*parallel.Workspace) error { s.Drop(); return nil }) // never fails
	s.engine.Evict("")
}

// Use is what a node needs to work with handles. A Use without a store can run nothing.
type Use struct {
	Context context.Context
	Store   *Store
	// Turn is the job's among those that run side by side; nil: the request is reckoned with when it comes.
	Turn *parallel.Turn
	// Plan is how the job uses the devices (plan.Parse), which encoders that can be cut are cut by.
	Plan string
	// Loading is where seconds spent with loading weights are added.
	Loading *float64
}

// noDevice refuses what needs the engine.
func noDevice(what string) error {
	return fault.New(fault.CodeInternal, "%s needs a device, and this runner has none", what)
}

// do runs f on the device.
func (u Use) do(what string, f func(*parallel.Workspace) error) error {
	if u.Store == nil || u.Store.engine == nil {
		return noDevice(what)
	}
	return u.Store.engine.Do(u.Context, what, f)
}

// Sample runs a request on a model, with the weights and adapters of its handle.
func (u Use) Sample(req *parallel.Request, m *Model, observe func(parallel.Progress) error) (*parallel.Result, error) {
	s := u.Store
	if s == nil || s.engine == nil {
		return nil, noDevice("sampling")
	}
	req.Compute = s.compute.of(s.engine.Name(), m)
	defer s.use(&req.Model)()
	if u.Turn != nil {
		return u.Turn.Sample(u.Context, req, observe)
	}
	return s.engine.Sample(u.Context, req, observe)
}

// Enter announces a job that may sample, nil where there is no engine. Leave, of what is returned, ends it.
func (s *Store) Enter() *parallel.Turn {
	if s.engine == nil {
		return nil
	}
	return s.engine.Enter()
}

// lent takes weights from the store, or loads them and keeps them there. It must be called inside do: loading uses the
// device.
func lent[T resident](u Use, key string, load func() (T, error)) (T, error) {
	if w, ok := u.Store.weights.Get(key); ok {
		if t, ok := w.(T); ok {
			return t, nil
		}
	}
	began := time.Now()
	t, err := load()
	*u.Loading += time.Since(began).Seconds()
	if err != nil {
		return t, err
	}
	u.Store.weights.Put(key, t, t.Bytes())
	return t, nil
}

// lentFrom is lent of what open makes of a file; what is wrong with the file is told of an input.
func lentFrom[T resident](u Use, key, field string, c source.File, open func(*weights.File) (T, error)) (T, error) {
	return lent(u, key, func() (T, error) { return read(c, field, open) })
}

// read returns what open makes of a file; what is wrong with the file is told of an input.
func read[T any](c source.File, field string, open func(*weights.File) (T, error)) (out T, err error) {
	err = files.With(c, func(file *weights.File) (err error) {
		out, err = open(file)
		return err
	})
	if err != nil {
		return out, fault.Wrap(fault.CodeBadCheckpoint, field, err)
	}
	return out, nil
}
