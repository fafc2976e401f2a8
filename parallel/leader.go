package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/denoise"
	"patchbay/parallel/failure"
	"patchbay/parallel/forecast"
	"patchbay/parallel/leader"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
)

// Config configures a Leader. Fields that process.Config has too mean the same there.
type Config struct {
	NewOps                             func(rank, ranks int) (engine.Ops, error)
	DeviceOf                           func(rank int) string
	MemoryBytes, DeviceMemory, Reserve int64
	Transport                          comm.Transport // nil: comm.Local, on devices for one rank only
	Recode                             func(v any) (any, error)
	// Devices names the device of one rank (parallel/forecast/devices.json), with its link if it is not the usual one,
	// or those of all places if they differ; empty: "cpu". Stages are balanced, work is shared and plans are chosen by
	// it. Machine, if not nil, has measured rates and takes its place, with Mixed by place if devices differ, fastest
	// first.
	Devices string
	Machine *forecast.Machine
	Mixed   []forecast.Device
	// Patience is how long all ranks of a request together may make no progress before the request fails, 0: ten
	// minutes. It must exceed the longest single operation.
	Patience time.Duration
	// Ranks is how many ranks the devices of DeviceOf have places for, 0: any number. Plans with more ranks are
	// refused.
	Ranks int
	// Schedule says how waiting requests share the places of the leader; empty: ScheduleOne. Any other requires Ranks,
	// and Processes, if any, to be Divisible.
	Schedule Schedule
	// Relieve, if not nil, is called to free what others keep on the devices before work that ran out of device memory
	// is tried once more. Lost, if not nil, is called when this process has lost a device, or a rank hangs in it for
	// good.
	Relieve func()
	Lost    func(error)
	// Order, if not 0, is the seed of a fixed order in which ranks and samplers run one at a time, so that an
	// interleaving can be repeated and many can be tried. Deadlocks are found at once. It is for tests and
	// measurements.
	Order uint64
	// EncoderDType is the activation type of text encoders and autoencoders, F32 (the zero value) or BF16.
	EncoderDType engine.DType
	// Deterministic adds deterministic=on to every plan.
	Deterministic bool
	// Processes starts the processes that ranks run in; nil: all ranks run in this process.
	Processes Processes
}

// Processes manages the processes that ranks run in, here or on other machines.
type Processes interface {
	// Start returns processes with places for the given number of ranks, or for as many as are available. Ranks fill
	// the places in order. It is called before the first run, after a process was lost, and when Changed reports true.
	// The processes of the previous call are closed before.
	Start(ranks int) ([]process.Process, error)
	// Changed reports whether Start would return other processes now although none was lost.
	Changed(ranks int) bool
	// Missing lists the expected processes that are not available now, and why.
	Missing() []string
	// Survey returns what is known of the processes.
	Survey() forecast.Survey
}

// Divisible is Processes that several leaders can use at the same time, each with some of the processes.
type Divisible interface {
	Processes
	// On returns the processes at some places. Starting them connects them again, which must make them unusable for an
	// engine that had one of them before; what is resident in them stays.
	On(places []int) Processes
	// All returns the processes that there are, whichever leader has them.
	All() []process.Process
}

// fits refuses plans of more ranks than the devices have places for.
func (c *Config) fits(p plan.Plan) error {
	most := c.Ranks
	if c.DeviceOf != nil && c.Transport == nil && c.Processes == nil {
		most = 1 // nothing moves data between devices
	}
	if n := p.Ranks(); most > 0 && n > most {
		where := []string{"the processors (--ranks)"}
		for rank := range most {
			if c.DeviceOf != nil {
				where = append(where[:rank], c.DeviceOf(rank))
			}
		}
		return failure.Refuse("plan", "%s splits the work over %d ranks, and there are places for %d: %s (a device that is "+
			"named twice has two)", p, n, most, strings.Join(where, ", "))
	}
	return nil
}

// transport returns Transport or its default.
func (c *Config) transport() comm.Transport {
	if c.Transport == nil {
		return comm.Local{}
	}
	return c.Transport
}

// Leader owns the ranks of one device group and everything resident on them. It is safe for concurrent use. It runs one
// piece of work at a time, except for requests that share places (Config.Schedule).
type Leader struct {
	cfg         Config
	work        chan struct{}                 // holds one value while work runs; with shares: while Do runs
	ops         engine.Ops                    // for Do
	shares      *shares                       // nil: one piece of work at a time
	parts       []*Leader                     // leaders of shares that were taken before; guarded by resident
	chosen      map[string]forecast.Candidate // plans for shares, see fastest; guarded by resident
	at          []int                         // of a part: its places in the whole leader
	totalPlaces int                           // of a part: how many places the whole leader has
	lost        *leader.Team                  // team of a request that hung, until all its ranks have returned; nil: none
	team        *leader.Team                  // ranks of the last plan; nil before the first request and after a failure
	cluster     forecast.Cluster              // one rank as the planner sees it
	home        *process.Local                // this process
	resident    sync.Mutex                    // guards hosts, parts and chosen
	processes   process.List                  // where ranks run: home alone, or other processes; nil: not started
	scheduler   *scope.Scheduler              // nil: everything runs freely
	buf         rank.Buffer                   // memory of Do
	next        uint64                        // last session or team number
}

// NewLeader makes a leader. Its ranks start with the first work that needs them. Close ends them.
func NewLeader(cfg Config) (*Leader, error) {
	if cfg.NewOps == nil {
		return nil, fmt.Errorf("engine without operations")
	}
	cluster, err := cfg.cluster()
	if err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	e := &Leader{cfg: cfg, cluster: cluster, work: make(chan struct{}, 1), scheduler: scope.NewScheduler(cfg.Order)}
	e.home, err = process.New(process.Config{
		NewOps: cfg.NewOps, DeviceOf: cfg.DeviceOf, MemoryBytes: cfg.MemoryBytes, DeviceMemory: cfg.DeviceMemory,
		Reserve: cfg.Reserve, Transport: cfg.Transport, Recode: cfg.Recode, Order: e.scheduler,
	})
	if err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	if cfg.Processes == nil {
		e.processes = process.List{e.home}
	}
	e.ops = e.home.Ops()
	if cfg.Schedule == "" || cfg.Schedule == ScheduleOne || cfg.Ranks == 1 {
		return e, nil
	}
	if _, ok := cfg.Processes.(Divisible); cfg.Ranks < 1 || cfg.Processes != nil && !ok {
		return nil, fmt.Errorf("start the engine: schedule %s wants a number of places on this machine", cfg.Schedule)
	}
	if e.ops, err = cfg.NewOps(0, 1); err != nil { // home's Ops may load weights meanwhile
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	e.shares, e.chosen = newShares(cfg.Ranks), map[string]forecast.Candidate{}
	return e, nil
}

// start starts the processes for the given number of ranks if there are too few or one was lost. It returns an error if
// usable does. The caller must hold e.work.
func (e *Leader) start(ranks int) error {
	if err := e.usable(); err != nil {
		return err
	}
	if e.cfg.Processes == nil || e.processes != nil && !e.cfg.Processes.Changed(ranks) && !slices.ContainsFunc(e.processes, gone) {
		return nil
	}
	e.stop()
	hosts, err := e.cfg.Processes.Start(ranks)
	if err != nil {
		return &failure.Error{Code: failure.HostLost, Text: "start the processes of the ranks", Cause: err}
	}
	e.resident.Lock()
	defer e.resident.Unlock()
	e.processes, e.parts = hosts, nil // the processes of the parts have new connections
	return nil
}

// refit adapts the plan of a request to the processes that have started and to the speeds of machines that have met. It
// chooses a plan that is still to be chosen. If processes are missing and the others have too few places for the plan,
// it returns the fastest plan for those places. The caller must hold e.work.
func (e *Leader) refit(r *request.Request, p plan.Plan) (plan.Plan, error) {
	places, far := e.processes.Places(), e.survey().Remote
	if fit := places == 0 || p.Ranks() <= places; fit && p.Choose == 0 && !far {
		return p, nil
	} else if fit && p.Choose == 0 {
		return e.settle(r, p)
	} else if fit {
		places = p.Choose
	}
	missing := e.cfg.Processes.Missing()
	asked, err := e.parse(r.Plan)
	if err != nil {
		return p, err
	}
	if len(missing) == 0 && asked.Choose == 0 {
		return p, failure.Refuse("plan", "%s splits the work over %d ranks, and all hosts have places for %d", p, p.Ranks(),
			places)
	}
	own := plan.OneRank()
	own.Choose, own.Overlap, own.Deterministic = places, asked.Overlap, asked.Deterministic
	own.Stale = asked.Stale || asked.Pipe > 1 && asked.Patches > 1 && !asked.Deterministic
	if own, err = e.choose(r, own); err != nil && len(missing) > 0 {
		return p, fmt.Errorf("%w; hosts that are missing: %s", err, strings.Join(missing, "; "))
	} else if err != nil {
		return p, err
	}
	return e.settle(r, own)
}

func gone(h process.Process) bool { return h.Err() != nil }

// because returns the reason why a run has failed: the loss of a process explains more than the errors that follow from
// it. A canceled run stays canceled.
func (e *Leader) because(err error) error {
	code := scope.AsError(err).Code
	lost := func() int { return slices.IndexFunc(e.processes, gone) }
	for wait := time.Now().Add(lossGracePeriod); e.cfg.Processes != nil && code == failure.PeerLost && lost() < 0 &&
		time.Now().Before(wait); {
		time.Sleep(lossGracePeriod / 100) // peers may notice the loss of a process first
	}
	if i := lost(); i >= 0 && code != failure.Cancelled {
		return e.processes[i].Err()
	}
	return err
}

// lossGracePeriod is how much later than its peers the leader may notice that a process is gone.
const lossGracePeriod = time.Second

// abandon ends the processes of ranks that hang or are cut off from each other, so that the request can run again on
// new ones, and returns the error of the request. If a rank hangs in this process, it calls Config.Lost. The caller
// must hold e.work.
func (e *Leader) abandon(err error) error {
	cause := scope.AsError(err)
	if hangs := e.lost != nil || e.team != nil && e.team.Hangs.Load(); e.cfg.Processes == nil && hangs &&
		cause.Code == failure.PeerLost && e.cfg.Lost != nil {
		e.cfg.Lost(err)
	}
	lost := cause.Code == failure.PeerLost || cause.Code == failure.DeviceLost // a lost device ends its process
	if e.cfg.Processes == nil || !lost && e.lost == nil {
		return err
	}
	e.stop()
	if e.lost != nil {
		<-e.lost.Ended // returns soon: its processes have ended
		e.lost = nil
	}
	if !lost {
		return err
	}
	return &failure.Error{Code: failure.HostLost, Text: "the processes of the ranks were ended", Cause: cause}
}

// stop ends the processes of the ranks. The caller must hold e.work.
func (e *Leader) stop() {
	e.dismiss()
	e.resident.Lock()
	hosts := e.processes
	e.processes = nil
	e.resident.Unlock()
	for _, h := range hosts {
		h.Close()
	}
}

// Close waits for running work, ends the ranks and frees all weights.
func (e *Leader) Close() {
	release, _ := e.takeAll(context.Background())
	defer release()
	e.dismiss()
	if e.usable() != nil {
		return // memory that a hanging rank uses stays until the process ends
	}
	e.ops.Free(e.buf.Mem)
	if e.shares != nil {
		rank.CloseOps(e.ops)
	}
	for _, h := range e.all() {
		h.Close()
	}
}

// dismiss ends the ranks, including those of shares. The caller must hold e.work and, of a leader with shares, all
// places.
func (e *Leader) dismiss() {
	for _, part := range e.parts {
		part.dismiss()
	}
	if e.team == nil {
		return
	}
	e.team.Close()
	if e.team.Hangs.Load() {
		e.lost = e.team
	}
	e.team = nil
}

// usable returns an error while a rank of an earlier request hangs, because it may still read weights and write memory.
// The caller must hold e.work.
func (e *Leader) usable() error {
	for _, part := range e.parts {
		if err := part.usable(); err != nil {
			return err
		}
	}
	if e.lost == nil {
		return nil
	}
	select {
	case <-e.lost.Ended:
		e.lost = nil
		return nil
	default:
		return &failure.Error{
			Code: failure.PeerLost, Text: "a rank of an earlier request hangs: restart the worker",
			Cause: e.lost.Verdict(),
		}
	}
}

// assemble makes the ranks of a plan the current team. The caller must hold e.work.
func (e *Leader) assemble(p plan.Plan, spec *dit.Spec) error {
	folded := p.Pipe > 1 && plan.Skips(spec)
	if e.team != nil && e.team.Plan == p && e.team.Mesh.Plan.Pipe == p.Stops(folded) {
		return nil
	}
	e.dismiss()
	e.next++
	of := process.Team{ID: e.next, Plan: p, Folded: folded}
	if e.at != nil && e.cfg.Processes != nil { // process.Local.Share accounts for this otherwise
		of.Concurrent = (p.Ranks()*e.totalPlaces + len(e.at) - 1) / len(e.at)
	}
	t, err := leader.NewTeam(of, leader.TeamConfig{
		Processes: e.processes, Owned: e.cfg.Processes != nil, Patience: e.cfg.Patience, Scheduler: e.scheduler,
	})
	e.team = t
	return err
}

// Name returns the name of the operations that the ranks use, e.g. "cpu/avx2".
func (e *Leader) Name() string { return e.ops.Name() }

// all returns this process and those of the ranks.
func (e *Leader) all() []process.Process {
	e.resident.Lock()
	defer e.resident.Unlock()
	if len(e.processes) == 1 && e.processes[0] == process.Process(e.home) {
		return e.processes
	}
	if d, ok := e.cfg.Processes.(Divisible); ok {
		return append([]process.Process{e.home}, d.All()...)
	}
	return append([]process.Process{e.home}, e.processes...)
}

// Resident lists the models whose weights are loaded, most recently used first.
func (e *Leader) Resident() (list []process.Resident) {
	for _, h := range e.all() {
		list = append(list, h.Resident()...)
	}
	return list
}

// Evict drops the resident weights of key. If key is empty, it drops all weights and the memory of activations. It
// waits for running work.
func (e *Leader) Evict(key string) {
	release, _ := e.takeAll(context.Background())
	defer release()
	if key == "" {
		e.dismiss() // frees their activations too
	}
	if e.usable() != nil {
		return
	}
	if key == "" {
		e.empty()
		return
	}
	for _, h := range e.all() {
		h.Evict(key)
	}
}

// relieved runs work. If a device runs out of memory, it frees everything that is kept between requests and runs work
// once more. It calls Config.Lost if a device is lost. The caller must hold e.work.
func (e *Leader) relieved(work func() error) error {
	err := work()
	full := errors.Is(err, engine.ErrOutOfMemory) || // or in another process, which may share a device with this one
		err != nil && e.cfg.Processes != nil && e.cfg.DeviceOf != nil && scope.AsError(err).Code == failure.OutOfMemory
	if full && !errors.Is(err, engine.ErrDeviceLost) && e.at == nil { // a share is not alone on the devices
		if e.relieve() != nil {
			return scope.AsError(err)
		}
		err = work()
	}
	if !errors.Is(err, engine.ErrDevice) && !errors.Is(err, engine.ErrDeviceLost) && !isLost(err) {
		return err
	}
	told := scope.AsError(err)
	if told.Code == failure.DeviceLost && e.cfg.Lost != nil {
		e.cfg.Lost(told)
	}
	return told
}

// relieve frees everything that is kept between requests, here and by others. Nothing else may be running.
func (e *Leader) relieve() error {
	e.dismiss()
	if err := e.usable(); err != nil {
		return err
	}
	if e.cfg.Relieve != nil {
		e.cfg.Relieve()
	}
	e.empty()
	_ = e.ops.Sync() // clears the error of calls that were dropped
	return nil
}

// empty frees everything that is kept between requests except the ranks. The caller must hold e.work.
func (e *Leader) empty() {
	for _, h := range e.all() {
		h.Evict("")
	}
	e.ops.Free(e.buf.Mem)
	e.buf = rank.Buffer{}
}

// isLost reports whether a rank, possibly of another process, has lost its device.
func isLost(err error) bool {
	var e *failure.Error
	return errors.As(err, &e) && e.Code == failure.DeviceLost
}

// take waits until nothing else works on the ranks; release gives them back. It returns an error if ctx is done first.
func (e *Leader) take(ctx context.Context) (release func(), err error) {
	select {
	case e.work <- struct{}{}:
	case <-ctx.Done():
		return nil, failure.Cancel(ctx.Err())
	}
	if ctx.Err() != nil {
		<-e.work
		return nil, failure.Cancel(ctx.Err())
	}
	return func() { <-e.work }, nil
}

// Sample runs one request. It returns when the run is finished, refused, canceled (ctx) or has failed; the Leader stays
// usable in every case. Errors are *failure.Error, possibly wrapped, unless a rank or its device cannot be started.
// Waiting requests run one after the other, or side by side on shares of the places (Config.Schedule).
func (e *Leader) Sample(ctx context.Context, req *request.Request, observe request.Observe) (*request.Result, error) {
	return e.sample(ctx, nil, req, observe)
}

func (e *Leader) sample(ctx context.Context, turn *Turn, req *request.Request, observe request.Observe) (*request.Result, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if e.shares != nil {
		return e.runShared(ctx, turn, req, observe)
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
	if err := e.start(plan.Ranks()); err != nil {
		return nil, err
	}
	if plan, err = e.refit(req, plan); err != nil {
		return nil, err
	}
	var result *request.Result
	err = e.relieved(func() (err error) {
		result, err = e.attempt(ctx, req, plan, observe)
		return err
	})
	return result, e.advised(err, req, plan)
}

// attempt makes weights and ranks ready and runs a request. The caller must hold e.work.
func (e *Leader) attempt(ctx context.Context, req *request.Request, plan plan.Plan, observe request.Observe) (*request.Result, error) {
	var stats request.Stats
	var err error
	if stats.LoadSeconds, err = e.acquire(req.Model, plan, req); err != nil {
		return nil, err
	}
	if err := e.acquireNets(req, plan); err != nil {
		return nil, err
	}
	if err := e.assemble(plan, req.Model.Spec); err != nil {
		return nil, e.abandon(err)
	}
	var result *request.Result
	err = scope.Recovered("sampler "+req.Sampler, func() error {
		var err error
		e.next++
		cluster, _ := e.devices()
		result, err = denoise.Run(ctx, req, observe, stats, denoise.Ranks{
			Team: e.team, Session: e.next, Device: cluster.Device, DeviceOf: e.cfg.DeviceOf, Memory: e.cfg.MemoryBytes,
		})
		return err
	})
	if err != nil && e.team.InStep {
		e.team.InStep = false
		return nil, err
	}
	if err != nil {
		e.dismiss() // exchanges may have been cut short: the next request starts with new ranks
		return nil, e.abandon(e.because(err))
	}
	return result, nil
}
