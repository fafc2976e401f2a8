package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"patchbay/engine"
	"patchbay/parallel/failure"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
)

// Schedule says how waiting requests share the places of an engine.
type Schedule string

// The schedules.
const (
	ScheduleOne  Schedule = "one"  // one at a time on all places, with the plans that they name
	ScheduleAuto Schedule = "auto" // side by side so that the last one ends soonest; a lone request gets all places
	ScheduleEach Schedule = "each" // side by side, each on as few places as it fits on
)

// shares hands out the places of a leader whose requests run side by side, in the order in which the requests came. It
// is safe for concurrent use.
type shares struct {
	all     int
	mu      sync.Mutex
	free    []int      // ascending
	due     int        // requests that want places, now or soon: a Turn counts from Enter on
	queue   []*byte    // waiting calls of take, oldest first; pointers serve as identities
	changed *sync.Cond // signals a change of free, due or queue
}

func newShares(places int) *shares {
	s := &shares{all: places}
	s.changed = sync.NewCond(&s.mu)
	for i := range places {
		s.free = append(s.free, i)
	}
	return s
}

// take waits for the caller's turn and for size to return a number of places, which it then takes. size gets the number
// of requests that want places and the number of free places; 0 means to wait until one of them changes. turn may be
// nil. take returns an error if ctx is done first.
func (s *shares) take(ctx context.Context, turn *Turn, size func(due, free int) int) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	me := new(byte)
	s.queue = append(s.queue, me)
	extra := turn == nil || turn.counted // Enter counts a turn only until it gets its first places
	if extra {
		s.due++
		s.changed.Broadcast()
	}
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})()
	leave := func() {
		s.queue = slices.DeleteFunc(s.queue, func(w *byte) bool { return w == me })
		s.changed.Broadcast()
	}
	for ctx.Err() == nil {
		due, free := s.due, len(s.free)
		if s.queue[0] == me && free > 0 {
			s.mu.Unlock()
			n := size(due, free) // takes a while if it has to search for a plan
			s.mu.Lock()
			if due != s.due || free != len(s.free) {
				continue
			}
			if n > 0 && n <= free {
				got := slices.Clone(s.free[:n])
				s.free = slices.Delete(s.free, 0, n)
				s.due--
				if !extra {
					turn.counted = true
				}
				leave()
				return got, nil
			}
		}
		s.changed.Wait()
	}
	if extra {
		s.due--
	}
	leave()
	return nil, failure.Cancel(ctx.Err())
}

// give returns places.
func (s *shares) give(places []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, places...)
	slices.Sort(s.free)
	s.changed.Broadcast()
}

// Turn announces a job's requests, so that sharing out places accounts for requests that are about to come.
type Turn struct {
	e       *Leader
	counted bool // no longer part of shares.due; guarded by shares.mu
}

// Enter announces a job that will run requests. The caller must call Leave at its end.
func (e *Leader) Enter() *Turn {
	t := &Turn{e: e}
	if s := e.shares; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.due++
		s.changed.Broadcast()
	}
	return t
}

// Leave declares that the job will run no more requests. A nil Turn does nothing.
func (t *Turn) Leave() {
	if t == nil || t.e.shares == nil {
		return
	}
	s := t.e.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.counted {
		t.counted = true
		s.due--
		s.changed.Broadcast()
	}
}

// Sample is Leader.Sample for a request of the job.
func (t *Turn) Sample(ctx context.Context, req *request.Request, observe request.Observe) (*request.Result, error) {
	return t.e.sample(ctx, t, req, observe)
}

// runShared runs a request on a share of the places. If it runs out of memory beside others, it runs again once they
// have ended and everything that is kept between requests has been freed.
func (e *Leader) runShared(ctx context.Context, turn *Turn, req *request.Request, observe request.Observe) (*request.Result, error) {
	p, err := e.parse(req.Plan)
	if err != nil {
		return nil, err
	}
	own := *req
	var failed error
	places, err := e.shares.take(ctx, turn, func(due, free int) int {
		var n int
		n, own.Plan, failed = e.share(req, p, due, free)
		if failed != nil {
			return 1 // given back at once
		}
		return n
	})
	if err != nil {
		return nil, err
	}
	if failed != nil {
		e.shares.give(places)
		return nil, failed
	}
	sample := func() (*request.Result, error) {
		on := e.on(places)
		defer on.home.Release()
		return on.Sample(ctx, &own, observe)
	}
	result, err := sample()
	e.shares.give(places)
	if err == nil || !isFull(err) {
		return result, err
	}
	release, err := e.takeAll(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := e.relieve(); err != nil {
		return nil, err
	}
	return sample()
}

// isFull reports whether work failed because memory ran out.
func isFull(err error) bool {
	return !errors.Is(err, engine.ErrDeviceLost) &&
		(errors.Is(err, engine.ErrOutOfMemory) || scope.AsError(err).Code == failure.OutOfMemory)
}

// share returns how many of the free places a request gets while due requests want some, and the plan that it runs with
// there. n is 0 if it must wait for more.
func (e *Leader) share(req *request.Request, p plan.Plan, due, free int) (n int, text string, err error) {
	if req.Plan != "" && p.Choose == 0 {
		if free < p.Ranks() {
			return 0, req.Plan, e.cfg.fits(p)
		}
		return p.Ranks(), req.Plan, nil
	}
	most := free
	if p.Choose > 0 {
		most = min(free, p.Choose)
	}
	seconds := func(n int) float64 { return e.fastest(req, p, n).Seconds }
	if e.cfg.Schedule == ScheduleEach {
		for n = 1; n <= most && math.IsInf(seconds(n), 1); n++ {
		}
		if n > most {
			n = 0
		}
	} else if sizes := forecast.ShareSizes(due, most, seconds); len(sizes) > 0 {
		n = sizes[0]
	}
	if n == 0 {
		if free == e.shares.all { // no more will come: the run reports what it lacks
			p.Choose = most
			return most, p.String(), nil
		}
		return 0, "", nil
	}
	c := e.fastest(req, p, n)
	if e.cfg.DeviceOf != nil { // without devices, its ranks use the processors of all n places
		n = c.Plan.Ranks()
	}
	if c.Plan.Speeds = (plan.Speeds{}); c.Plan.Ranks() > 1 { // set later, to those of its places
		text = c.Plan.String()
	} else if p.Deterministic {
		text = "deterministic=on"
	}
	return n, text, nil
}

// fastest returns the fastest plan of a request on at most n places; Seconds is +Inf if none fits. Answers are cached.
func (e *Leader) fastest(req *request.Request, p plan.Plan, n int) forecast.Candidate {
	w := req.Workload()
	key := fmt.Sprint(n, req.Model.Key, w.T, w.Y, w.X, w.Batch, w.Evaluations, w.Text, w.Prefix, w.Biases, w.Branches,
		p.Stale, p.Overlap, p.Deterministic, req.HasArea())
	for _, n := range w.Nets {
		key += fmt.Sprint(" ", n.Key, n.Entries, n.Each)
	}
	e.resident.Lock()
	c, ok := e.chosen[key]
	e.resident.Unlock()
	if ok {
		return c
	}
	p.Choose = n
	s := e.search(req.Model, w, p)
	s.Flat = req.HasArea()
	if c, ok = s.Fastest(); !ok {
		c.Seconds = math.Inf(1)
	}
	e.resident.Lock()
	defer e.resident.Unlock()
	if len(e.chosen) > 256 {
		clear(e.chosen)
	}
	e.chosen[key] = c
	return c
}

// on returns the leader of a share of the places, which the caller must have taken. It ends the ranks of other shares
// that overlap with it.
func (e *Leader) on(places []int) *Leader {
	e.resident.Lock()
	defer e.resident.Unlock()
	same := func(o *Leader) bool { return slices.Equal(o.at, places) }
	if i := slices.IndexFunc(e.parts, same); i >= 0 {
		return e.parts[i]
	}
	e.parts = slices.DeleteFunc(e.parts, func(o *Leader) bool {
		if !slices.ContainsFunc(places, func(n int) bool { return slices.Contains(o.at, n) }) {
			return false
		}
		o.dismiss()
		return o.lost == nil
	})
	cfg := e.cfg
	cfg.Schedule, cfg.Ranks, cfg.Relieve = ScheduleOne, len(places), nil
	home := e.home.Share(places, e.shares.all)
	if of := e.cfg.DeviceOf; of != nil {
		cfg.DeviceOf = func(rank int) string { return of(places[rank%len(places)]) }
	}
	e.next += 1 << 32 // keeps the team numbers of parts distinct
	part := &Leader{
		cfg: cfg, cluster: e.cluster.Of(places), work: make(chan struct{}, 1), scheduler: e.scheduler, home: home,
		ops: e.ops, processes: []process.Process{home}, next: e.next, at: places, totalPlaces: e.shares.all,
	}
	if d, ok := cfg.Processes.(Divisible); ok {
		part.cfg.Processes, part.processes = d.On(places), nil
	}
	e.parts = append(e.parts, part)
	return part
}

// takeAll is take for all places: it waits until nothing else runs, neither requests nor Do.
func (e *Leader) takeAll(ctx context.Context) (release func(), err error) {
	if e.shares == nil {
		return e.take(ctx)
	}
	places, err := e.shares.take(ctx, nil, func(_, free int) int {
		if free < e.shares.all {
			return 0
		}
		return free
	})
	if err != nil {
		return nil, err
	}
	end, err := e.take(ctx)
	if err != nil {
		e.shares.give(places)
		return nil, err
	}
	return func() { end(); e.shares.give(places) }, nil
}
