package graph

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/lru"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel"
)

// Config configures a Runner.
type Config struct {
	// Engine lends the devices; nil: only nodes that need none can run (tests, dry runs).
	Engine *parallel.Pool
	Roots  files.Roots
	// Compute is the type of the denoise loop's activations; empty: f32.
	Compute value.Compute
	// Catalogue holds the classes that workflows may use. It is required.
	Catalogue *Catalogue
	// CacheBytes bounds cached values of nodes on the host; 0: 2 GiB.
	CacheBytes int64
	// Lease is how long a handle that Exec gave out lives without being used; 0: 15 minutes.
	Lease time.Duration
	// Now is the clock of leases; nil: time.Now.
	Now func() time.Time
	// Bounds are checked before and after every node.
	Bounds Bounds
	// Jobs is how many jobs run at the same time; 0: one.
	Jobs int
}

// Runner executes workflows, one or a few at a time; caches, weights and handles survive between jobs.
type Runner struct {
	roots   files.Roots
	cat     *Catalogue
	work    sync.RWMutex  // read-locked by jobs, locked by what must not overlap one
	slots   chan struct{} // holds one value per running job
	slotsMu sync.Mutex    // held while filling slots, where two callers could deadlock
	values  *lru.Cache[*cached]
	store   *value.Store
	*handles
	bounds Bounds
}

// cached is the cached result of one node.
type cached struct {
	outputs []any
	files   []files.Output
	ui      map[string]any
}

// NewRunner returns a Runner. The caller keeps the engine; Close frees weights that the runner loaded.
func NewRunner(cfg Config) (*Runner, error) {
	if cfg.Catalogue == nil {
		return nil, fmt.Errorf("node runner: no catalogue of classes")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.CacheBytes < 0 || cfg.Lease < 0 {
		return nil, fmt.Errorf("node runner: cache %d and lease %s must not be negative", cfg.CacheBytes, cfg.Lease)
	}
	return &Runner{
		bounds: cfg.Bounds, roots: cfg.Roots, cat: cfg.Catalogue, slots: make(chan struct{}, max(1, cfg.Jobs)),
		values:  lru.New[*cached](cmp.Or(cfg.CacheBytes, 2<<30), nil),
		store:   value.NewStore(cfg.Engine, cfg.Compute, cfg.Roots),
		handles: newHandles(cmp.Or(cfg.Lease, 15*time.Minute), cfg.Now),
	}, nil
}

// begin waits for so many free places beside the running jobs and takes them; end gives them back.
func (r *Runner) begin(jobs int) (end func()) {
	r.slotsMu.Lock()
	for range jobs {
		r.slots <- struct{}{}
	}
	r.slotsMu.Unlock()
	r.work.RLock()
	return func() {
		r.work.RUnlock()
		for range jobs {
			<-r.slots
		}
	}
}

// Close waits for running jobs, then drops all caches, handles and weights of the runner.
func (r *Runner) Close() {
	r.work.Lock()
	defer r.work.Unlock()
	r.values.Clear()
	r.store.Drop()
	r.FreeHandles()
}

// ShedValues drops the cached results of nodes, even while a job runs, which keeps those that it has used. A nil
// Runner does nothing.
func (r *Runner) ShedValues() {
	if r != nil {
		r.values.Clear()
	}
}

// FreeWeights waits until nobody works on the devices, then drops all weights and activations, the engine's too.
func (r *Runner) FreeWeights() { r.store.Free() }

// Free waits for running jobs, then drops cached values and all resident weights, the engine's too (ComfyUI's /free).
// Handles stay: their weights are read again when needed.
func (r *Runner) Free() {
	r.work.Lock()
	defer r.work.Unlock()
	r.values.Clear()
	r.store.Free()
}

// Roots returns the folders that names refer to.
func (r *Runner) Roots() files.Roots { return r.roots }

// Run executes a job, and validates it before if that has not been done. Events are emitted one at a time, in ComfyUI's
// order, but for the terminal event, which follows from the error. An error is always a *fault.Error and comes with
// the result so far. When ctx is canceled, the job ends within one transformer block.
func (r *Runner) Run(ctx context.Context, job Job, emit func(Event)) (*Result, error) {
	jobs := 1
	if job.Alone {
		jobs = cap(r.slots)
	}
	defer r.begin(jobs)()
	if emit == nil {
		emit = func(Event) {}
	}
	turn := r.store.Enter()
	defer turn.Leave()
	outputs := job.Outputs
	if outputs == nil {
		var failure *fault.Error
		if outputs, failure = Validate(r.cat, r.roots, job); len(outputs) == 0 {
			return &Result{}, failure
		}
	}
	x := &execution{
		run: r, job: &job, ctx: ctx, turn: turn, emit: emit, began: time.Now(), local: map[string]*cached{},
		signed: map[string]string{}, result: &Result{UI: map[string]map[string]any{}},
	}
	err := x.walk(outputs)
	x.result.Timings.Total = seconds(x.began)
	t := &x.result.Timings
	t.Other = max(0, t.Total-t.Load-t.Text-t.Denoise-t.VAE)
	if err != nil {
		return x.result, err
	}
	return x.result, nil
}

// execution is one run of a job.
type execution struct {
	run    *Runner
	job    *Job
	ctx    context.Context
	turn   *parallel.Turn // nil: a single node
	emit   func(Event)
	began  time.Time
	signed map[string]string // signatures by node id; "" while one is being computed, and for nodes that must run
	work   *worklist
	local  map[string]*cached // values of this run by node id, so that none can be evicted while it is needed
	result *Result
}

// cached returns the result of a node from this run or an earlier one, nil if there is none.
func (x *execution) cached(id string) *cached {
	if e := x.local[id]; e != nil {
		return e
	}
	if sig := x.signature(id); sig != "" {
		if e, ok := x.run.values.Get(sig); ok {
			x.local[id] = e
			return e
		}
	}
	return nil
}

func (x *execution) walk(outputs []string) error {
	x.emit(Event{Type: "execution_start", Data: map[string]any{"timestamp": time.Now().UnixMilli()}})
	x.result.Cached = []string{}
	for _, id := range x.job.Workflow.root.Keys() {
		if x.cached(id) != nil {
			x.result.Cached = append(x.result.Cached, id)
		}
	}
	x.emit(Event{Type: "execution_cached", Data: map[string]any{
		"nodes":     append([]string{}, x.result.Cached...),
		"timestamp": time.Now().UnixMilli(),
	}})
	p := newWorklist(x.job.Workflow, x.run.cat, outputs, func(id string) bool { return x.cached(id) != nil }, false)
	x.work = p
	if err := x.planFits(); err != nil {
		return err
	}
	for id, ok := p.next(); ok; id, ok = p.next() {
		done, err := x.node(id)
		if err != nil {
			return err
		}
		if done {
			p.finish(id)
		}
	}
	for _, id := range x.result.Cached { // nodes that show intermediate output show it again
		if k := x.class(id); k.Shows && !k.Output {
			x.deliver(id, x.cached(id))
		}
	}
	if len(p.pending) > 0 {
		return fault.New(fault.Internal, "nodes %s wait for each other", strings.Join(p.pending, ", "))
	}
	return nil
}

// node executes one node, or takes its result from the cache. done is false if it now waits for lazy inputs.
func (x *execution) node(id string) (done bool, failure error) {
	k := x.class(id)
	e := x.cached(id)
	if e == nil {
		if err := x.ctx.Err(); err != nil {
			return false, x.fail(id, k, nil, err)
		}
		x.emit(Event{Type: "executing", Node: id, Data: map[string]any{"node": id, "display_node": id}})
		in, err := x.inputs(id, k)
		if err == nil && k.Wants != nil && !x.work.asked[id] && x.work.ask(id, k.Wants(x.newCall(id, k, in))) {
			return false, nil
		}
		if err == nil && k.Phase == PhaseDenoise {
			if bad, why := x.preflight(id, in); why != nil {
				return false, x.fail(bad, x.class(bad), nil, why)
			}
		}
		if err == nil {
			x.warnIgnored(id, k)
			e, err = x.call(id, k, in)
		}
		if err != nil {
			return false, x.fail(id, k, in, err)
		}
		x.local[id] = e
		x.result.Executed = append(x.result.Executed, id)
		if sig := x.signature(id); sig != "" {
			x.run.values.Put(sig, e, e.bytes())
		}
	}
	if k.Output || k.Shows {
		x.deliver(id, e)
	}
	return true, nil
}

// warnIgnored warns of values that a node is given for inputs that its class does not have, as with a misspelled name.
// ComfyUI passes over them in silence; editors write some beside the inputs.
func (x *execution) warnIgnored(id string, k *Class) {
	given := x.job.Workflow.inputs(id)
	declared := k.declared(given.Get)
	var names []string
	for _, name := range given.Keys() {
		if find(declared, name) == nil && name != "upload" && name != "control_after_generate" {
			names = append(names, pyjson.Excerpt(name))
		}
	}
	if len(names) > 0 {
		x.newCall(id, k, nil).Warn("node %s: %s has no input %s; what is given for it is not used", id, k.Name,
			fault.List(names))
	}
}

// preflight checks, before a long run, whether the nodes that decode its result can take it, if their autoencoder is
// loaded by then. It returns the node at fault.
func (x *execution) preflight(id string, in map[string]any) (string, error) {
	model, _ := in["model"].(*value.Model)
	if g, ok := in["guider"].(*value.Guider); ok {
		model = g.Model
	}
	for _, next := range x.work.blocks[id] {
		if class := x.job.Workflow.Class(next); model == nil || (class != "VAEDecode" && class != "VAEDecodeTiled") {
			continue
		}
		l, _ := asLink(x.job.Workflow.inputs(next).At("vae"))
		made, _ := x.cached(l.id).output(l.slot)
		if v, ok := made.(*value.VAE); ok {
			if err := v.Takes(v.Channels, model.Format.Channels); err != nil {
				return next, err
			}
		}
	}
	return "", nil
}

// output returns one output of a node, indexed as Python indexes a list: -1 is the last. ok is false if there is none
// of that number, or the node has not run.
func (e *cached) output(slot int) (v any, ok bool) {
	if e == nil {
		return nil, false
	}
	if slot < 0 {
		slot += len(e.outputs)
	}
	if slot < 0 || slot >= len(e.outputs) {
		return nil, false
	}
	return e.outputs[slot], true
}

// bytes estimates the host memory of a cached result.
func (e *cached) bytes() int64 {
	var n int64
	for _, v := range e.outputs {
		n += sizeOf(v)
	}
	for i := range e.files {
		n += int64(len(e.files[i].Data))
	}
	return n
}

// deliver adds the files of a node to the result and emits its executed event. Files have no names yet: the caller
// puts them into the event.
func (x *execution) deliver(id string, e *cached) {
	ui, before := map[string]any{}, len(x.result.Outputs)
	maps.Copy(ui, e.ui)
	for _, f := range e.files {
		f.Node = id
		x.result.Outputs = append(x.result.Outputs, f)
		list, _ := ui[f.Kind].([]any)
		ui[f.Kind] = append(list, map[string]any{"index": f.Index, "type": f.Type, "prefix": f.Prefix, "ext": f.Ext})
	}
	x.result.UI[id] = ui
	if len(ui) > 0 {
		x.emit(Event{
			Type: "executed", Node: id, Data: map[string]any{"node": id, "display_node": id, "output": ui},
			Files: x.result.Outputs[before:],
		})
	}
}

// inputs gathers the values of a node's declared inputs and checks their types.
func (x *execution) inputs(id string, k *Class) (map[string]any, error) {
	in := map[string]any{}
	given := x.job.Workflow.inputs(id)
	declared := k.declared(given.Get)
	for _, name := range given.Keys() {
		if IsLink(given.At(name)) && find(declared, name) == nil {
			if err := k.beyond(name); err != nil {
				return in, err
			}
		}
	}
	for i := range declared {
		decl := &declared[i]
		v, ok := given.Get(decl.Name)
		if !ok {
			continue
		}
		if l, linked := asLink(v); linked {
			e := x.cached(l.id)
			if e == nil && decl.Lazy {
				continue
			}
			if v, ok = e.output(l.slot); !ok {
				return in, fault.Named(fault.Internal, decl.Name, "node %s gave no output %d", l.id, l.slot)
			}
		}
		if err := checkType(decl, v); err != nil {
			return in, err
		}
		in[decl.Name] = v
	}
	return in, nil
}

func (x *execution) newCall(id string, k *Class, in map[string]any) *Call {
	return &Call{Context: x.ctx, Job: x.job, ID: id, Class: k, in: in, of: x, ui: map[string]any{}}
}

// call runs the function of a class. A panic becomes a failure with the stack.
func (x *execution) call(id string, k *Class, in map[string]any) (e *cached, err error) {
	c := x.newCall(id, k, in)
	began, before := time.Now(), x.result.Timings
	defer func() {
		if p := recover(); p != nil {
			err = recovered(p)
		}
		spent, t := seconds(began), &x.result.Timings
		t.charge(k.Phase, spent, before)
		x.result.Nodes = append(x.result.Nodes, NodeTime{id, k.Name, k.Phase, spent, t.Load - before.Load})
	}()
	bounds := x.run.bounds
	for _, e := range x.local {
		bounds.held += e.bytes()
	}
	if err := bounds.inputs(in); err != nil {
		return nil, err
	}
	c.bounds = bounds
	outputs, err := k.Run(c)
	if err != nil {
		return nil, err
	}
	if len(outputs) != len(k.Outputs) {
		return nil, fault.New(fault.Internal, "class %s gave %d outputs, it declares %d", k.Name,
			len(outputs), len(k.Outputs))
	}
	if err := bounds.outputs(k, outputs); err != nil {
		return nil, err
	}
	return &cached{outputs: outputs, files: c.saved, ui: c.ui}, nil
}

// charge adds the time of a node to the part that its class counts towards, less what the node itself has charged to
// any part.
func (t *Timings) charge(s Phase, spent float64, before Timings) {
	rest := spent - (t.Load - before.Load) - (t.Denoise - before.Denoise) - (t.Text - before.Text) - (t.VAE - before.VAE)
	switch {
	case rest <= 0:
	case s == PhaseLoad:
		t.Load += rest
	case s == PhaseText:
		t.Text += rest
	case s == PhaseVAE:
		t.VAE += rest
	}
}

// recovered turns a panic value into a failure; a *fault.Error is returned as it is.
func recovered(p any) error {
	if f, ok := p.(*fault.Error); ok {
		return f
	}
	f := fault.New(fault.Panic, "internal error: %v", p)
	if err, ok := p.(error); ok {
		f.Cause = err
	}
	f.Stack = string(debug.Stack())
	return f
}

// fail returns err as a failure that names the node and holds what ComfyUI's execution_error event carries.
func (x *execution) fail(id string, k *Class, in map[string]any, err error) error {
	f := x.run.roots.Publish(fault.From(err))
	if ended := x.ctx.Err(); ended != nil && errors.Is(err, ended) {
		f.Code = fault.Cancelled // its deadline too
	}
	f.Node, f.Class = id, k.Name
	current, all := map[string]any{}, []string{}
	for name, v := range in {
		current[name] = []any{shown(v)}
	}
	if x.job.Workflow != nil { // ComfyUI's "outputs" are the nodes that its cache knows, which is all
		all = x.job.Workflow.IDs()
	}
	if f.Extra == nil {
		f.Extra = map[string]any{}
	}
	f.Extra["executed"] = append([]string{}, x.result.Executed...)
	f.Extra["current_outputs"], f.Extra["current_inputs"] = all, current
	return f
}
