package value

import (
	"context"
	"time"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/source"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/node/lru"
	"patchbay/parallel"
	"patchbay/parallel/process"
	"patchbay/parallel/request"
)

// resident is a loaded network that stays resident between jobs.
type resident interface {
	Bytes() int64
	Close()
}

// Store loads what handles name, and keeps between jobs what the engine does not: weights shared by handles with
// different adapters, and tokenizers. Weights of encoders and autoencoders are resident in the engine, which lends the
// devices, beside those of diffusion models. It is safe for concurrent use.
type Store struct {
	engine  *parallel.Pool // nil: nothing can be loaded
	compute Compute
	roots   files.Roots
	loader  *source.Loader
	// vocabularies caches tokenizers by encoder; each counts as one.
	vocabularies *lru.Cache[*tokenizer.Tokenizer]
}

// NewStore returns an empty store.
func NewStore(engine *parallel.Pool, compute Compute, roots files.Roots) *Store {
	return &Store{
		engine: engine, compute: compute, roots: roots, loader: &source.Loader{},
		vocabularies: lru.New[*tokenizer.Tokenizer](16, nil),
	}
}

// Drop evicts the weights of encoders and autoencoders, once the running work is done.
func (s *Store) Drop() {
	if s.engine == nil {
		return
	}
	for _, m := range s.engine.Resident() {
		if m.Beside {
			s.engine.Evict(m.Key)
		}
	}
}

// Free evicts all weights, including those of diffusion models, once the running work is done.
func (s *Store) Free() {
	if s.engine != nil {
		s.engine.Evict("")
	}
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

// keeping says how a network is made resident.
type keeping struct {
	key   string
	file  source.File
	field string // input that the file came from; names it in errors
	rank  int    // of Workspace.Loaders, on whose device it is
}

// cached returns a network that is resident in the engine, opening it there if it is not: by open on the operations of
// the device, and before that on those of weights.Shapes, which says how much room it wants. It must be called inside
// do, and stays until that ends or lets go of it.
func cached[T resident](u Use, l *parallel.Workspace, ops engine.Ops, k keeping,
	open func(engine.Ops, *weights.File) (T, error),
) (T, error) {
	return keep(u, l, k, 0, func() int64 { return sizeOf(k, open) }, func(int64) (T, error) {
		return read(k.file, k.field, func(file *weights.File) (T, error) { return open(ops, file) })
	})
}

// brought is cached for a network that reads layers from its file before each use if it does not get the room to keep
// all: as few as necessary of what open is told, 0: any number of bytes.
func brought[T bringing](u Use, l *parallel.Workspace, ops engine.Ops, k keeping,
	open func(ops engine.Ops, file *weights.File, room int64) (T, error),
) (T, error) {
	out, err := keep(u, l, k, l.Room(), func() int64 {
		return sizeOf(k, func(ops engine.Ops, file *weights.File) (T, error) { return open(ops, file, 0) })
	}, func(room int64) (*opened[T], error) {
		return openNet(k.file, k.field, func(file *weights.File) (T, error) { return open(ops, file, room) })
	})
	if err != nil {
		var none T
		return none, err
	}
	return out.net, nil
}

// sizeOf returns the bytes that a network which open opens wants; 0 if it cannot be opened, which a load then reports.
func sizeOf[T resident](k keeping, open func(engine.Ops, *weights.File) (T, error)) int64 {
	t, err := read(k.file, k.field, func(file *weights.File) (T, error) { return open(weights.Shapes(), file) })
	if err != nil {
		return 0
	}
	return t.Bytes()
}

// keep makes a network that wants so many bytes resident in the engine (parallel.Workspace.Keep).
func keep[T resident](u Use, l *parallel.Workspace, k keeping, room int64, bytes func() int64,
	load func(room int64) (T, error),
) (T, error) {
	began := time.Now()
	kept, loaded, err := l.Keep(k.rank, process.Want{
		Key: k.key, Room: room, Bytes: bytes,
		Load: func(room int64) (process.Kept, error) { return load(room) },
	})
	if loaded {
		*u.Loading += time.Since(began).Seconds()
	}
	t, ok := kept.(T)
	if err == nil && !ok {
		err = fault.New(fault.Internal, "%s is resident as another kind of network", k.key)
	}
	return t, err
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
