package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/denoise"
	"patchbay/parallel/hardware"
	"patchbay/parallel/leader"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
)

// Leader runs one request at a time on some of the places of a Pool, or on all of them.
type Leader struct {
	cfg       Config           // of the pool; Ranks, DeviceOf and Processes are those of its places
	at        []int            // its places; nil: all
	total     int              // how many places the pool has
	cluster   hardware.Cluster // one rank as the planner sees it
	home      *process.Local   // this process
	ops       engine.Ops       // on the device of its first place
	relieve   func() error     // frees what is kept between requests; nil: others work on the devices
	scheduler *scope.Scheduler // nil: everything runs freely
	last      *atomic.Uint64   // last session or team number, shared by all leaders of the pool

	work      chan struct{} // holds one value while work runs
	lost      *leader.Team  // team of a request that hung, until all its ranks have returned; nil: none
	team      *leader.Team  // ranks of the last plan; nil before the first request and after a failure
	resident  sync.Mutex    // guards processes
	processes process.List  // where ranks run: home alone, or other processes; nil: not started
}

// Sample runs one request, once nothing else runs on the leader's places.
func (e *Leader) Sample(
	ctx context.Context, req *request.Request, observe request.Observe,
) (*request.Result, error) {
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
	step, furthest, lost := 0, 0, []string(nil)
	for {
		result, fitted, err := e.fitted(ctx, req, plan, func(p request.Progress) error {
			step = p.Step
			if observe == nil {
				return nil
			}
			return observe(p)
		})
		if err == nil {
			result.Stats.Lost = lost
			return result, nil
		}
		// where processes of ranks have gone, others go on from the log: each time further, so that there is an end
		if cause := scope.AsError(err); req.Resume == nil || cause.Code != fault.HostLost || step <= furthest {
			return nil, e.advised(err, req, fitted)
		}
		furthest, lost = step, append(lost, err.Error())
	}
}

// fitted runs a request on the processes that there are, with a plan for them, which it returns. The caller must hold
// e.work.
func (e *Leader) fitted(
	ctx context.Context, req *request.Request, plan plan.Plan, observe request.Observe,
) (result *request.Result, fitted plan.Plan, err error) {
	if err := e.start(plan.Ranks()); err != nil {
		return nil, plan, err
	}
	if fitted, err = e.refit(req, plan); err != nil {
		return nil, fitted, err
	}
	err = e.relieved(func() (err error) {
		result, err = e.attempt(ctx, req, fitted, observe)
		return err
	})
	return result, fitted, err
}

// current reports whether the processes for the given number of ranks run, and none of them was lost.
func (e *Leader) current(ranks int) bool {
	return e.cfg.Processes == nil ||
		e.processes != nil && !e.cfg.Processes.Changed(ranks) && !slices.ContainsFunc(e.processes, gone)
}

// start starts the processes for the given number of ranks if they are not current. It returns an error if usable does.
// The caller must hold e.work.
func (e *Leader) start(ranks int) error {
	if err := e.usable(); err != nil || e.current(ranks) {
		return err
	}
	e.stop()
	list, err := e.cfg.Processes.Start(ranks)
	if err != nil {
		return fault.Wrap(fault.HostLost, "", fmt.Errorf("start the processes of the ranks: %w", err))
	}
	e.resident.Lock()
	defer e.resident.Unlock()
	e.processes = list
	return nil
}

// refit adapts the plan of a request to the processes that have started and to the speeds of machines that are
// connected. It chooses a plan that is still to be chosen. If processes are missing and the others have too few places
// for the plan, it returns the fastest plan for those places. The caller must hold e.work.
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
		return p, fault.Bad("plan", "%s splits the work over %d ranks, and all hosts have places for %d", p, p.Ranks(),
			places)
	}
	fitted := plan.OneRank()
	fitted.Choose, fitted.Overlap, fitted.Deterministic = places, asked.Overlap, asked.Deterministic
	fitted.Stream = asked.Stream
	fitted.Stale = asked.Stale || asked.Pipe > 1 && asked.Patches > 1 && !asked.Deterministic
	if fitted, err = e.choose(r, fitted); err != nil && len(missing) > 0 {
		return p, fmt.Errorf("%w; hosts that are missing: %s", err, strings.Join(missing, "; "))
	} else if err != nil {
		return p, err
	}
	return e.settle(r, fitted)
}

func gone(h process.Process) bool { return h.Err() != nil }

// because returns the reason why a run has failed: the loss of a process explains more than the errors that follow from
// it. A canceled run stays canceled.
func (e *Leader) because(err error) error {
	code := scope.AsError(err).Code
	lost := func() int { return slices.IndexFunc(e.processes, gone) }
	for wait := time.Now().Add(lossGracePeriod); e.cfg.Processes != nil && code == fault.PeerLost && lost() < 0 &&
		time.Now().Before(wait); {
		time.Sleep(lossGracePeriod / 100) // peers may notice the loss of a process first
	}
	if i := lost(); i >= 0 && code != fault.Cancelled {
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
		cause.Code == fault.PeerLost && e.cfg.Lost != nil {
		e.cfg.Lost(err)
	}
	lost := cause.Code == fault.PeerLost || cause.Code == fault.DeviceLost // a lost device ends its process
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
	return fault.Wrap(fault.HostLost, "", fmt.Errorf("the processes of the ranks were ended: %w", cause))
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

// dismiss ends the ranks. The caller must hold e.work.
func (e *Leader) dismiss() {
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
	if e.lost == nil {
		return nil
	}
	select {
	case <-e.lost.Ended:
		e.lost = nil
		return nil
	default:
		return fault.Wrap(fault.PeerLost, "",
			fmt.Errorf("a rank of an earlier request hangs: restart the worker: %w", e.lost.Verdict()))
	}
}

// assemble makes the ranks of a plan the current team. The caller must hold e.work.
func (e *Leader) assemble(p plan.Plan, spec *dit.Spec) error {
	folded := p.Pipe > 1 && plan.Skips(spec)
	if e.team != nil && e.team.Plan == p && e.team.Mesh.Plan.Pipe == p.Stops(folded) {
		return nil
	}
	e.dismiss()
	of := process.TeamSpec{ID: e.last.Add(1), Plan: p, Folded: folded}
	if e.at != nil && e.cfg.Processes != nil { // process.Local.Share accounts for this otherwise
		of.Concurrent = (p.Ranks()*e.total + len(e.at) - 1) / len(e.at)
	}
	t, err := leader.NewTeam(of, leader.TeamConfig{
		Processes: e.processes, Owned: e.cfg.Processes != nil, Patience: e.cfg.Patience, Scheduler: e.scheduler,
	})
	e.team = t
	return err
}

// relieved runs work. If a device runs out of memory, it frees everything that is kept between requests and runs work
// once more. It calls Config.Lost if a device is lost. The caller must hold e.work.
func (e *Leader) relieved(work func() error) error {
	err := work()
	full := errors.Is(err, engine.ErrOutOfMemory) || // or in another process, which may share a device with this one
		err != nil && e.cfg.Processes != nil && e.cfg.DeviceOf != nil && scope.AsError(err).Code == fault.OutOfMemory
	if full && !errors.Is(err, engine.ErrDeviceLost) && e.relieve != nil {
		if e.relieve() != nil {
			return scope.AsError(err)
		}
		err = work()
	}
	if !errors.Is(err, engine.ErrDevice) && !errors.Is(err, engine.ErrDeviceLost) &&
		!errors.Is(err, engine.ErrOutOfMemory) && !isLost(err) {
		return err
	}
	failure := scope.AsError(err)
	if failure.Code == fault.DeviceLost && e.cfg.Lost != nil {
		e.cfg.Lost(failure)
	}
	return failure
}

// isLost reports whether a rank, possibly of another process, has lost its device.
func isLost(err error) bool {
	var e *fault.Error
	return errors.As(err, &e) && e.Code == fault.DeviceLost
}

// take waits until nothing else works on the ranks; release gives them back. It returns an error if ctx is done first.
func (e *Leader) take(ctx context.Context) (release func(), err error) {
	select {
	case e.work <- struct{}{}:
	case <-ctx.Done():
		return nil, fault.Cancel(ctx.Err())
	}
	if ctx.Err() != nil {
		<-e.work
		return nil, fault.Cancel(ctx.Err())
	}
	return func() { <-e.work }, nil
}

// attempt makes weights and ranks ready and runs a request. The caller must hold e.work.
func (e *Leader) attempt(
	ctx context.Context, req *request.Request, plan plan.Plan, observe request.Observe,
) (*request.Result, error) {
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
		cluster, _ := e.devices()
		result, err = denoise.Run(ctx, req, observe, stats, denoise.Target{
			Team: e.team, Session: e.last.Add(1), Device: cluster.Device, DeviceOf: e.cfg.DeviceOf, Memory: e.cfg.MemoryBytes,
			Kernels: e.ops.Name(),
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
