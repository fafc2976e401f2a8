package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
)

// Schedule says how waiting requests share the places of a pool.
type Schedule string

// The schedules.
const (
	ScheduleOne  Schedule = "one"  // one at a time on all places, with the plans that they name
	ScheduleAuto Schedule = "auto" // side by side so that the last one ends soonest; a lone request gets all places
	ScheduleEach Schedule = "each" // side by side, each on as few places as it fits on
)

// Pool is the places of one group of devices, and everything that is resident on them. It gives the places to requests:
// all of them to one after the other, or some to each (Config.Schedule). It is safe for concurrent use.
type Pool struct {
	whole  *Leader    // of all places
	ops    engine.Ops // for Do
	places *places    // nil: one piece of work at a time

	mu      sync.Mutex                    // guards the next two
	leaders []*Leader                     // of places that requests have had
	chosen  map[string]forecast.Candidate // plans for some of the places, see fastest
}

// NewPool makes a pool. Its ranks start with the first work that needs them. Close ends them.
func NewPool(cfg Config) (*Pool, error) {
	if cfg.NewOps == nil {
		return nil, fmt.Errorf("places without operations")
	}
	cluster, err := cfg.cluster()
	if err != nil {
		return nil, fmt.Errorf("start the devices: %w", err)
	}
	e := &Leader{
		cfg: cfg, cluster: cluster, work: make(chan struct{}, 1), scheduler: scope.NewScheduler(cfg.Order),
		last: new(atomic.Uint64),
	}
	e.home, err = process.New(process.Config{
		NewOps: cfg.NewOps, DeviceOf: cfg.DeviceOf, MemoryBytes: cfg.MemoryBytes, Room: cfg.Resident(),
		DeviceMemory: cfg.DeviceMemory, Reserve: cfg.Reserve, Copies: cfg.Copies, Transport: cfg.Transport,
		Recode: cfg.Recode, Order: e.scheduler,
	})
	if err != nil {
		return nil, fmt.Errorf("start the devices: %w", err)
	}
	if cfg.Processes == nil {
		e.processes = process.List{e.home}
	}
	e.ops = e.home.Ops()
	p := &Pool{whole: e, ops: e.ops, chosen: map[string]forecast.Candidate{}}
	e.relieve = p.relieve
	if cfg.Schedule == "" || cfg.Schedule == ScheduleOne || cfg.Ranks == 1 {
		return p, nil
	}
	if _, ok := cfg.Processes.(Divisible); cfg.Ranks < 1 || cfg.Processes != nil && !ok {
		return nil, fmt.Errorf("start the devices: schedule %s wants a number of places on this machine", cfg.Schedule)
	}
	if p.ops, err = cfg.NewOps(0, 1); err != nil { // those of the home process may load weights meanwhile
		return nil, fmt.Errorf("start the devices: %w", err)
	}
	p.places = newPlaces(cfg.Ranks)
	return p, nil
}

// Sample runs one request. It returns when the run is finished, refused, canceled (ctx) or has failed; the Pool stays
// usable in every case. Errors are *fault.Error, possibly wrapped, unless a rank or its device cannot be started.
// Waiting requests run one after the other, or side by side on some of the places each (Config.Schedule).
func (p *Pool) Sample(ctx context.Context, req *request.Request, observe request.Observe) (*request.Result, error) {
	return p.sample(ctx, nil, req, observe)
}

func (p *Pool) sample(
	ctx context.Context, turn *Turn, req *request.Request, observe request.Observe,
) (*request.Result, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if p.places == nil {
		return p.whole.Sample(ctx, req, observe)
	}
	return p.runBeside(ctx, turn, req, observe)
}

// Turn announces a job's requests, so that sharing out places accounts for requests that are about to come.
type Turn struct {
	pool    *Pool
	counted bool // no longer part of places.due; guarded by places.mu
}

// Enter announces a job that will run requests. The caller must call Leave at its end.
func (p *Pool) Enter() *Turn {
	t := &Turn{pool: p}
	if s := p.places; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.due++
		s.changed.Broadcast()
	}
	return t
}

// Leave declares that the job will run no more requests. A nil Turn does nothing.
func (t *Turn) Leave() {
	if t == nil || t.pool.places == nil {
		return
	}
	s := t.pool.places
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.counted {
		t.counted = true
		s.due--
		s.changed.Broadcast()
	}
}

// Sample is Pool.Sample for a request of the job.
func (t *Turn) Sample(
	ctx context.Context, req *request.Request, observe request.Observe,
) (*request.Result, error) {
	return t.pool.sample(ctx, t, req, observe)
}

// runBeside runs a request on some of the places. If it runs out of memory beside others, it runs again once they have
// ended and everything that is kept between requests has been freed.
func (p *Pool) runBeside(
	ctx context.Context, turn *Turn, req *request.Request, observe request.Observe,
) (*request.Result, error) {
	asked, err := p.whole.parse(req.Plan)
	if err != nil {
		return nil, err
	}
	fitted := *req
	var failed error
	held, err := p.places.take(ctx, turn, func(due, free int) int {
		var n int
		n, fitted.Plan, failed = p.share(req, asked, due, free)
		if failed != nil {
			return 1 // released at once
		}
		return n
	})
	if err != nil {
		return nil, err
	}
	if failed != nil {
		p.places.give(held)
		return nil, failed
	}
	sample := func() (*request.Result, error) {
		on := p.on(held)
		defer on.home.Release()
		return on.Sample(ctx, &fitted, observe)
	}
	result, err := sample()
	p.places.give(held)
	if err == nil || !isFull(err) {
		return result, err
	}
	release, err := p.takeAll(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := p.relieve(); err != nil {
		return nil, err
	}
	return sample()
}

// isFull reports whether work failed because memory ran out.
func isFull(err error) bool {
	return !errors.Is(err, engine.ErrDeviceLost) &&
		(errors.Is(err, engine.ErrOutOfMemory) || scope.AsError(err).Code == fault.OutOfMemory)
}

// share returns how many of the free places a request gets while due requests want some, and the plan that it runs with
// there. n is 0 if it must wait for more.
func (p *Pool) share(req *request.Request, asked plan.Plan, due, free int) (n int, text string, err error) {
	if req.Plan != "" && asked.Choose == 0 {
		if free < asked.Ranks() {
			return 0, req.Plan, p.whole.cfg.fits(asked)
		}
		return asked.Ranks(), req.Plan, nil
	}
	most := free
	if asked.Choose > 0 {
		most = min(free, asked.Choose)
	}
	seconds := func(n int) float64 { return p.fastest(req, asked, n).Seconds }
	if p.whole.cfg.Schedule == ScheduleEach {
		for n = 1; n <= most && math.IsInf(seconds(n), 1); n++ {
		}
		if n > most {
			n = 0
		}
	} else if sizes := ShareSizes(due, most, seconds); len(sizes) > 0 {
		n = sizes[0]
	}
	if n == 0 {
		if free == p.places.all { // no more will come: the run reports what it lacks
			asked.Choose = most
			return most, asked.String(), nil
		}
		return 0, "", nil
	}
	c := p.fastest(req, asked, n)
	if p.whole.cfg.DeviceOf != nil { // without devices, its ranks use the processors of all n places
		n = c.Plan.Ranks()
	}
	if c.Plan.Speeds = (plan.Speeds{}); c.Plan.Ranks() > 1 { // set later, to those of its places
		text = c.Plan.String()
	} else if asked.Deterministic {
		text = "deterministic=on"
	}
	return n, text, nil
}

// fastest returns the fastest plan of a request on at most n places; Seconds is +Inf if none fits. Answers are cached.
func (p *Pool) fastest(req *request.Request, asked plan.Plan, n int) forecast.Candidate {
	w := req.Workload()
	key := fmt.Sprint(n, req.Model.Key, asked, req.HasArea(), w.Key())
	p.mu.Lock()
	c, ok := p.chosen[key]
	p.mu.Unlock()
	if ok {
		return c
	}
	asked.Choose = n
	s := p.whole.search(req.Model, w, asked)
	s.Flat = req.HasArea()
	if c, ok = s.Fastest(); !ok {
		c.Seconds = math.Inf(1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.chosen) > 256 {
		clear(p.chosen)
	}
	p.chosen[key] = c
	return c
}

// on returns the leader of some of the places, which the caller must have taken. It ends the ranks of leaders of other
// sets of places that overlap with them.
func (p *Pool) on(at []int) *Leader {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := func(o *Leader) bool { return slices.Equal(o.at, at) }
	if i := slices.IndexFunc(p.leaders, same); i >= 0 {
		return p.leaders[i]
	}
	p.leaders = slices.DeleteFunc(p.leaders, func(o *Leader) bool {
		if !slices.ContainsFunc(at, func(n int) bool { return slices.Contains(o.at, n) }) {
			return false
		}
		o.dismiss()
		return o.lost == nil
	})
	w := p.whole
	home := w.home.Share(at, p.places.all)
	e := &Leader{
		cfg: p.whole.cfg, at: at, total: p.places.all, cluster: w.cluster.Of(at), home: home, ops: p.ops,
		scheduler: w.scheduler, last: w.last, work: make(chan struct{}, 1), processes: process.List{home},
	}
	e.cfg.Ranks = len(at)
	if of := p.whole.cfg.DeviceOf; of != nil {
		e.cfg.DeviceOf = func(rank int) string { return of(at[rank%len(at)]) }
	}
	if d, ok := p.whole.cfg.Processes.(Divisible); ok {
		e.cfg.Processes, e.processes = d.On(at), nil
	}
	p.leaders = append(p.leaders, e)
	return e
}

// takeAll waits until nothing else runs, neither requests nor Do.
func (p *Pool) takeAll(ctx context.Context) (release func(), err error) {
	if p.places == nil {
		return p.whole.take(ctx)
	}
	all, err := p.places.take(ctx, nil, func(_, free int) int {
		if free < p.places.all {
			return 0
		}
		return free
	})
	if err != nil {
		return nil, err
	}
	end, err := p.whole.take(ctx)
	if err != nil {
		p.places.give(all)
		return nil, err
	}
	return func() { end(); p.places.give(all) }, nil
}

// Close waits for running work, ends the ranks and frees all weights.
func (p *Pool) Close() {
	release, _ := p.takeAll(context.Background())
	defer release()
	p.dismiss()
	if p.usable() != nil {
		return // memory that a hanging rank uses stays until the process ends
	}
	p.empty() // before the Ops that may have made some of it
	if p.places != nil {
		rank.CloseOps(p.ops)
	}
	for _, h := range p.all() {
		h.Close()
	}
}

// Name returns the name of the operations that the ranks use, e.g. "cpu/avx2".
func (p *Pool) Name() string { return p.ops.Name() }

// all returns this process and those of the ranks.
func (p *Pool) all() process.List {
	e := p.whole
	e.resident.Lock()
	defer e.resident.Unlock()
	if len(e.processes) == 1 && e.processes[0] == process.Process(e.home) {
		return e.processes
	}
	if d, ok := p.whole.cfg.Processes.(Divisible); ok {
		return append(process.List{e.home}, d.All()...)
	}
	return append(process.List{e.home}, e.processes...)
}

// Resident lists what is resident, process by process and device by device, most recently used first.
func (p *Pool) Resident() (list []process.Resident) {
	for _, h := range p.all() {
		list = append(list, h.Resident()...)
	}
	return list
}

// Evict drops the resident weights of key. If key is empty, it drops all weights and the memory of activations. It
// waits for running work.
func (p *Pool) Evict(key string) {
	release, _ := p.takeAll(context.Background())
	defer release()
	if key == "" {
		p.dismiss() // frees their activations too
	}
	if p.usable() != nil {
		return
	}
	if key == "" {
		p.empty()
		return
	}
	for _, h := range p.all() {
		h.Evict(key)
	}
}

// relieve frees everything that is kept between requests: the last resort where memory has run out although room was
// made for what was known. Nothing else may be running.
func (p *Pool) relieve() error {
	p.dismiss()
	if err := p.usable(); err != nil {
		return err
	}
	p.empty()
	_ = p.ops.Sync() // clears the error of calls that were dropped
	return nil
}

// empty frees everything that is kept between requests except the ranks. Nothing else may be running.
func (p *Pool) empty() {
	for _, h := range p.all() {
		h.Evict("")
	}
}

// dismiss ends all ranks. The caller must hold all places.
func (p *Pool) dismiss() {
	for _, e := range p.leaders {
		e.dismiss()
	}
	p.whole.dismiss()
}

// usable returns an error while a rank of an earlier request hangs, because it may still read weights and write memory.
// The caller must hold all places.
func (p *Pool) usable() error {
	for _, e := range p.leaders {
		if err := e.usable(); err != nil {
			return err
		}
	}
	return p.whole.usable()
}
