package value

import (
	"context"
	"time"

	"patchbay/fault"
	"patchbay/models/source"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/node/lru"
	"patchbay/parallel"
	"patchbay/parallel/request"
)

// resident is a loaded network that a Store keeps between jobs.
type resident interface {
	Bytes() int64
	Close()
}

// Store keeps what handles have loaded between jobs: weights of encoders and autoencoders, weights shared by handles
// with different adapters, and tokenizers. It borrows the devices from the engine. It is safe for concurrent use.
type Store struct {
	engine  *parallel.Pool // nil: nothing can be loaded
	compute Compute
	roots   files.Roots
	weights *lru.Cache[resident]
	loader  *source.Loader
	// vocabularies caches tokenizers by encoder; each counts as one.
	vocabularies *lru.Cache[*tokenizer.Tokenizer]
}

// NewStore returns an empty store; weightBytes bounds the memory of resident text encoders and autoencoders.
func NewStore(engine *parallel.Pool, compute Compute, roots files.Roots, weightBytes int64) *Store {
	return &Store{
		engine: engine, compute: compute, roots: roots, weights: lru.New(weightBytes, resident.Close),
		loader:       &source.Loader{},
		vocabularies: lru.New[*tokenizer.Tokenizer](16, nil),
	}
}

// Drop evicts all weights that the store holds. Those of diffusion models belong to the engine.
func (s *Store) Drop() { s.weights.Clear() }

// Free evicts all weights, including those of diffusion models, once the running work is done.
func (s *Store) Free() {
	if s.engine == nil {
		s.Drop()
		return
	}
	// While a rank of an earlier request hangs, Do returns an error and the weights must stay.
	_ = s.engine.Do(context.Background(), "free", func(*parallel.Workspace) error { s.Drop(); return nil })
	s.engine.Evict("")
}

// Use is what a node needs to work with handles. A Use without a store cannot run anything.
type Use struct {
	Context context.Context
	Store   *Store
	// Turn is the job's announcement to the engine (Pool.Enter), which shares devices among jobs; nil: none was made.
	Turn *parallel.Turn
	// Plan is the job's plan (plan.Parse). Encoders that can be split are split by its tensor degree.
	Plan string
	// Loading accumulates the seconds spent on loading weights.
	Loading *float64
}

// noDevice returns the error for work that needs an engine where there is none.
func noDevice(what string) error {
	return fault.New(fault.Internal, "%s needs a device, and this runner has none", what)
}

// do runs f on the device.
func (u Use) do(what string, f func(*parallel.Workspace) error) error {
	if u.Store == nil || u.Store.engine == nil {
		return noDevice(what)
	}
	return u.Store.engine.Do(u.Context, what, f)
}

// Sample runs a request on a model, with the weights and adapters of its handle.
func (u Use) Sample(req *request.Request, m *Model, observe func(request.Progress) error) (*request.Result, error) {
	s := u.Store
	if s == nil || s.engine == nil {
		return nil, noDevice("sampling")
	}
	req.Compute = s.compute.Of(s.engine.Name(), m)
	defer s.use(&req.Model)()
	if u.Turn != nil {
		return u.Turn.Sample(u.Context, req, observe)
	}
	return s.engine.Sample(u.Context, req, observe)
}

// Enter announces a job that may sample; the caller ends it with Turn.Leave. It returns nil if there is no engine.
func (s *Store) Enter() *parallel.Turn {
	if s.engine == nil {
		return nil
	}
	return s.engine.Enter()
}

// cached returns weights from the store, loading and keeping them if they are missing. It must be called inside do,
// because loading uses the device.
func cached[T resident](u Use, key string, load func() (T, error)) (T, error) {
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

// cachedFrom is cached for a file that open reads; errors in the file are attributed to the input field.
func cachedFrom[T resident](u Use, key, field string, c source.File, open func(*weights.File) (T, error)) (T, error) {
	return cached(u, key, func() (T, error) { return read(c, field, open) })
}

// read opens a file and returns the result of open; errors in the file are attributed to the input field.
func read[T any](c source.File, field string, open func(*weights.File) (T, error)) (out T, err error) {
	err = files.With(c, func(file *weights.File) (err error) {
		out, err = open(file)
		return err
	})
	if err != nil {
		return out, fault.Wrap(fault.BadCheckpoint, field, err)
	}
	return out, nil
}
