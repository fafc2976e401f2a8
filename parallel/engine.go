package parallel

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/failure"
	"patchbay/parallel/forecast"
	"patchbay/parallel/group"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
)

// Config says what an Engine runs on.
type Config struct {
	// NewOps makes the operations of one rank of so many that compute at the same time. All values it returns must be able
	// to share packed weights; memory that one has allocated may be freed by another.
	NewOps func(rank, ranks int) (engine.Ops, error)
	// MemoryBytes bounds weights, activations and buffers together in the memory of this process, 0: no limit.
	MemoryBytes int64
	// DeviceOf names the device of a rank, as its Ops do (engine.Located); nil: all ranks work in the memory of this
	// process.
	DeviceOf func(rank int) string
	// DeviceMemory bounds the same on each device, 0: what is free there when weights are loaded. Reserve bytes of that
	// are left to others.
	DeviceMemory, Reserve int64
	// Devices names the profile (parallel/forecast/profiles.json) of one rank, with its link where it is not the usual
	// one: stages are balanced and plans chosen by it; empty: "cpu". Machine, if not nil, is measured and takes its place.
	Devices string
	Machine *forecast.Machine
	// Recode passes every command and reply of a rank through an encoder and decoder: the tests' proof that ranks share no
	// memory with the leader. Nil in production.
	Recode func(v any) (any, error)
	// Patience is how long the ranks of a request may stand still together before it fails, 0: ten minutes. It must exceed
	// the longest single operation.
	Patience time.Duration
	// Transport connects the ranks; nil: comm.Local, which moves the memory of this process, so that plans of several
	// ranks are refused on devices.
	Transport comm.Transport
	// Ranks is how many ranks the devices have a place for, 0: any number. Plans of more are refused.
	Ranks int
	// Order, if not 0, is the seed of a fixed order in which ranks and samplers run one at a time: for tests, which can
	// repeat an interleaving and try many of them. Deadlocks are found at once.
	Order uint64
}

// fits refuses plans of more ranks than the devices have places for.
func (c *Config) fits(p plan.Plan) error {
	most := c.Ranks
	if c.DeviceOf != nil && c.Transport == nil {
		most = 1 // nothing moves data between devices
	}
	if n := p.Ranks(); most > 0 && n > most {
		var where []string
		for rank := range most {
			where = append(where, c.deviceOf(rank))
		}
		return failure.Refuse("plan", "%s splits the work over %d ranks, and there are places for %d: %s (a device that is "+
			"named twice has two)", p, n, most, strings.Join(where, ", "))
	}
	return nil
}

// transport is Transport or its default.
func (c *Config) transport() comm.Transport {
	if c.Transport == nil {
		return comm.Local{}
	}
	return c.Transport
}

// Engine owns the ranks of one device group and everything resident on them. Its methods may be called from any
// goroutine; work runs one piece at a time.
type Engine struct {
	cfg      Config
	work     chan struct{}          // holds one value while somebody works
	lost     *team                  // ranks of a request that hung and have not all come back; nil: none
	team     *team                  // ranks of the last plan; nil before the first request and after a failed one
	fabric   forecast.Fabric        // one rank as the planner sees it
	places   map[string]*placements // by device
	resident sync.Mutex             // of places
	local    engine.Ops             // serves Do while the ranks are idle
	buf      rank.Buffer            // memory of Do
	next     uint64                 // session numbers
}

// Observe is told of progress after every step; an error stops the run with that error.
type Observe func(Progress) error

// Local is what Engine.Do lends to one piece of work on one rank: text encoders, VAE, anything that is not the denoise
// loop.
type Local struct {
	Ops engine.Ops
	// Arena returns activation memory of at least the given bytes. It is one piece: a second call invalidates what the
	// first gave.
	Arena func(bytes int) (*engine.Arena, error)
	// Check returns the context's error once the job is cancelled; long work calls it between layers.
	Check func() error

	cfg *Config
}

// NewEngine starts the ranks. Close ends them.
func NewEngine(cfg Config) (*Engine, error) {
	if cfg.NewOps == nil {
		return nil, fmt.Errorf("engine without operations")
	}
	fabric, err := cfg.fabric()
	if err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	e := &Engine{cfg: cfg, fabric: fabric, work: make(chan struct{}, 1), places: map[string]*placements{}}
	places, err := e.placesOf(0)
	if err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	e.local = places.ops
	return e, nil
}

// deviceOf names the device of a rank, "" for the memory of this process.
func (c *Config) deviceOf(rank int) string {
	if c.DeviceOf == nil {
		return ""
	}
	return c.DeviceOf(rank)
}

// placesOf is the weights on the device of a rank. The caller holds e.work, but for the first call.
func (e *Engine) placesOf(rank int) (*placements, error) {
	where := e.cfg.deviceOf(rank)
	if p := e.places[where]; p != nil {
		return p, nil
	}
	ops, err := e.cfg.NewOps(rank, 1)
	if err != nil {
		return nil, err
	}
	e.resident.Lock()
	defer e.resident.Unlock()
	e.places[where] = newPlacements(&e.cfg, where, ops)
	return e.places[where], nil
}

// acquire makes the weights that ranks of a plan hold resident, each on the rank's device, and reports whether any had
// to be loaded.
func (e *Engine) acquire(m Model, split plan.Plan) (loaded bool, err error) {
	need, order := map[*placements][]dit.Held{}, []*placements(nil)
	for rank, h := range split.Holdings(forecast.OwnLanes(m.Spec, split, e.fabric.Device)) {
		p, err := e.placesOf(rank)
		if err != nil {
			return false, fmt.Errorf("start the device of rank %d: %w", rank, err)
		}
		if need[p] == nil {
			order = append(order, p)
		}
		if !slices.ContainsFunc(need[p], func(o dit.Held) bool { return plan.HeldKey("", o) == plan.HeldKey("", h) }) {
			need[p] = append(need[p], h)
		}
	}
	for _, p := range order {
		fresh, err := p.acquireAll(m, need[p])
		if err != nil {
			return loaded, err
		}
		loaded = loaded || fresh
	}
	return loaded, nil
}

// each calls f with the weights of every device.
func (e *Engine) each(f func(p *placements)) {
	e.resident.Lock()
	defer e.resident.Unlock()
	for _, where := range slices.Sorted(maps.Keys(e.places)) {
		f(e.places[where])
	}
}

// Close waits for the work in hand, ends the ranks and frees all weights.
func (e *Engine) Close() {
	release, _ := e.take(context.Background())
	defer release()
	e.dismiss()
	if e.usable() != nil {
		return // memory that a hanging rank uses stays until the process ends
	}
	e.each(func(p *placements) { p.evict("") })
	e.local.Free(e.buf.Mem)
	e.each(func(p *placements) { rank.CloseOps(p.ops) })
}

// dismiss ends the ranks. The caller holds e.work.
func (e *Engine) dismiss() {
	if e.team == nil {
		return
	}
	e.team.close()
	if e.team.left.Load() {
		e.lost = e.team
	}
	e.team = nil
}

// usable refuses work while a rank of an earlier request hangs: it may still read weights and write memory. The caller
// holds e.work.
func (e *Engine) usable() error {
	if e.lost == nil {
		return nil
	}
	select {
	case <-e.lost.ended:
		e.lost = nil
		return nil
	default:
		return &failure.Error{
			Code: failure.PeerLost, Text: "a rank of an earlier request hangs: restart the worker",
			Cause: e.lost.watch.verdict(),
		}
	}
}

// assemble makes the ranks of a plan the current ones. The caller holds e.work.
func (e *Engine) assemble(p plan.Plan, spec *dit.Spec) error {
	folded := p.Pipe > 1 && plan.Skips(spec)
	if e.team != nil && e.team.plan == p && e.team.mesh.Plan.Pipe == p.Stops(folded) {
		return nil
	}
	e.dismiss()
	t, err := newTeam(p, folded, &e.cfg, func(rank int) func(string) (dit.Model, bool) {
		return e.places[e.cfg.deviceOf(rank)].resident
	})
	e.team = t
	return err
}

// Name names the operations the ranks use, e.g. "cpu/avx2".
func (e *Engine) Name() string { return e.local.Name() }

// Resident lists the models whose weights are loaded, most recently used first.
func (e *Engine) Resident() (list []ResidentModel) {
	e.each(func(p *placements) { list = append(list, p.list()...) })
	return list
}

// Evict drops resident weights that match, or all if key is empty. It waits for the work in hand.
func (e *Engine) Evict(key string) {
	release, _ := e.take(context.Background())
	defer release()
	if e.usable() != nil {
		return
	}
	e.each(func(p *placements) { p.evict(key) })
}

// Do runs f on the device with nothing else running there. A panic in f becomes an error; what names f in it.
func (e *Engine) Do(ctx context.Context, what string, f func(*Local) error) error {
	release, err := e.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := e.usable(); err != nil {
		return err
	}
	l := &Local{Ops: e.local, cfg: &e.cfg, Check: func() error {
		if err := ctx.Err(); err != nil {
			return cancelled(err)
		}
		return nil
	}}
	l.Arena = func(bytes int) (*engine.Arena, error) {
		if e.cfg.MemoryBytes > 0 && int64(bytes) > e.cfg.MemoryBytes {
			return nil, &failure.Error{
				Code: failure.OutOfMemory,
				Text: fmt.Sprintf("%s needs %d MB, %d MB are allowed", what, bytes>>20, e.cfg.MemoryBytes>>20),
			}
		}
		if err := e.buf.Grow(e.local, bytes); err != nil {
			return nil, err
		}
		return engine.NewArena(what, e.buf.Mem, e.buf.Bytes), nil
	}
	return group.Recovered(what, func() error { return f(l) })
}

func cancelled(cause error) *failure.Error {
	return &failure.Error{Code: failure.Cancelled, Text: "cancelled", Cause: cause}
}

// take waits until nobody else works on the ranks; release gives them back. The error is ctx's.
func (e *Engine) take(ctx context.Context) (release func(), err error) {
	select {
	case e.work <- struct{}{}:
	case <-ctx.Done():
		return nil, cancelled(ctx.Err())
	}
	if ctx.Err() != nil {
		<-e.work
		return nil, cancelled(ctx.Err())
	}
	return func() { <-e.work }, nil
}

// Sample runs one request. It returns when the run is finished, refused, cancelled (ctx) or has failed; the Engine
// stays usable in every case. Errors are *Error. Requests that wait run one after the other.
func (e *Engine) Sample(ctx context.Context, req *Request, observe Observe) (*Result, error) {
	if err := req.validate(); err != nil {
		return nil, err
	}
	plan, err := e.plan(req)
	if err != nil {
		return nil, err
	}
	if err := e.cfg.fits(plan); err != nil {
		return nil, err
	}
	release, err := e.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := e.usable(); err != nil {
		return nil, err
	}
	start := time.Now()
	var stats Stats
	loaded, err := e.acquire(req.Model, plan)
	if err != nil {
		return nil, err
	}
	if loaded {
		stats.LoadSeconds = time.Since(start).Seconds()
	}
	if err := e.assemble(plan, req.Model.Spec); err != nil {
		return nil, err
	}
	var result *Result
	err = group.Recovered("sampler "+req.Sampler, func() error {
		var err error
		result, err = e.run(ctx, req, observe, stats)
		return err
	})
	if err != nil && e.team.kept {
		e.team.kept = false
		return nil, err
	}
	if err != nil {
		e.dismiss() // its exchanges may have been cut short: the next request starts with fresh ranks
		return nil, err
	}
	return result, nil
}
