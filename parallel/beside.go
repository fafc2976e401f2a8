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
	"patchbay/parallel/group"
	"patchbay/parallel/host"
	"patchbay/parallel/plan"
)

// Schedule says how requests that wait together share the places of an engine.
type Schedule string

// The schedules.
const (
	ScheduleOne  Schedule = "one"  // one at a time on all places, by the plans that they name
	ScheduleAuto Schedule = "auto" // side by side so that the last ends soonest; one that is alone gets all
	ScheduleEach Schedule = "each" // side by side, each on as few places as it fits
)

// shares is the places of an engine whose requests run side by side: which are free, and who waits. Requests get theirs
// in the order in which they came. Safe for concurrent use.
type shares struct {
	all     int
	mu      sync.Mutex
	free    []int      // ascending
	due     int        // requests that want places, now or soon: a turn counts from Enter on
	queue   []*byte    // who waits, by identity
	changed *sync.Cond // one of these is another
}

func newShares(places int) *shares {
	s := &shares{all: places}
	s.changed = sync.NewCond(&s.mu)
	for i := range places {
		s.free = append(s.free, i)
	}
	return s
}

// take waits until it is its caller's turn and size, which is told how many requests want places and how many places
// are free, says how many to take: none means to wait until that has changed. turn may be nil.
func (s *shares) take(ctx context.Context, turn *Turn, size func(due, free int) int) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	me := new(byte)
	s.queue = append(s.queue, me)
	extra := turn == nil || turn.counted // turns that have had places are counted no more
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
			n := size(due, free) // may take a while, when a plan is looked for
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
	return nil, cancelled(ctx.Err())
}

// give takes places back.
func (s *shares) give(places []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, places...)
	slices.Sort(s.free)
	s.changed.Broadcast()
}

// Turn is a job that is going to run a request: those that come soon are reckoned with when places are shared out.
type Turn struct {
	e       *Engine
	counted bool // as one that has had places; under shares.mu
}

// Enter announces a job. Leave ends it.
func (e *Engine) Enter() *Turn {
	t := &Turn{e: e}
	if s := e.shares; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.due++
		s.changed.Broadcast()
	}
	return t
}

// Leave says that the job runs no more requests. A nil Turn does nothing.
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

// Sample is Engine.Sample for a request of the job.
func (t *Turn) Sample(ctx context.Context, req *Request, observe Observe) (*Result, error) {
	return t.e.sample(ctx, t, req, observe)
}

// beside runs a request on a share of the places. Where there is no memory for it beside others, it runs again when
// they have ended, with everything freed that is kept between requests.
func (e *Engine) beside(ctx context.Context, turn *Turn, req *Request, observe Observe) (*Result, error) {
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
			return 1 // which are given back at once
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
	sample := func() (*Result, error) {
		on := e.on(places)
		defer on.home.Release()
		return on.Sample(ctx, &own, observe)
	}
	result, err := sample()
	e.shares.give(places)
	if err == nil || !isFull(err) {
		return result, err
	}
	release, err := e.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := e.relieve(); err != nil {
		return nil, err
	}
	return sample()
}

// isFull reports whether work failed for want of memory.
func isFull(err error) bool {
	return !errors.Is(err, engine.ErrDeviceLost) &&
		(errors.Is(err, engine.ErrOutOfMemory) || group.AsError(err).Code == failure.OutOfMemory)
}

// share is how many of the free places a request gets when so many want some, 0: it waits for more, and by which plan
// it runs there.
func (e *Engine) share(req *Request, p plan.Plan, due, free int) (n int, text string, err error) {
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
	} else if sizes := forecast.Groups(due, most, seconds); len(sizes) > 0 {
		n = sizes[0]
	}
	if n == 0 {
		if free == e.shares.all { // more will not come: the run says what it lacks
			p.Choose = most
			return most, p.String(), nil
		}
		return 0, "", nil
	}
	c := e.fastest(req, p, n)
	if e.cfg.DeviceOf != nil { // else its ranks have the processors of all its places
		n = c.Plan.Ranks()
	}
	if c.Plan.Speeds = (plan.Speeds{}); c.Plan.Ranks() > 1 { // those of its places
		text = c.Plan.String()
	} else if p.Deterministic {
		text = "deterministic=on"
	}
	return n, text, nil
}

// fastest is the fastest plan of a request on at most n places; Seconds are +Inf if it fits none. It is remembered.
func (e *Engine) fastest(req *Request, p plan.Plan, n int) forecast.Candidate {
	w := req.Workload()
	key := fmt.Sprint(n, req.Model.Key, w.T, w.Y, w.X, w.Batch, w.Evaluations, w.Text, w.Prefix, w.Biases, w.Branches,
		p.Stale, p.Overlap, p.Deterministic, req.hasArea())
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
	s.Flat = req.hasArea()
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

// on is the engine of a share of the places, which its caller has. Ranks of shares that had some of them end.
func (e *Engine) on(places []int) *Engine {
	e.resident.Lock()
	defer e.resident.Unlock()
	same := func(o *Engine) bool { return slices.Equal(o.at, places) }
	if i := slices.IndexFunc(e.parts, same); i >= 0 {
		return e.parts[i]
	}
	e.parts = slices.DeleteFunc(e.parts, func(o *Engine) bool {
		if !slices.ContainsFunc(places, func(n int) bool { return slices.Contains(o.at, n) }) {
			return false
		}
		o.dismiss()
		return o.lost == nil
	})
	cfg := e.cfg
	cfg.Schedule, cfg.Ranks, cfg.Relieve = ScheduleOne, len(places), nil
	home := e.home.On(places, e.shares.all)
	if of := e.cfg.DeviceOf; of != nil {
		cfg.DeviceOf = func(rank int) string { return of(places[rank%len(places)]) }
	}
	e.next += 1 << 32 // numbers of teams differ
	part := &Engine{
		cfg: cfg, cluster: e.cluster.Of(places), work: make(chan struct{}, 1), scheduler: e.scheduler, home: home,
		ops: e.ops, hosts: []host.Host{home}, next: e.next, at: places, crowd: e.shares.all,
	}
	if d, ok := cfg.Hosts.(Divisible); ok {
		part.cfg.Hosts, part.hosts = d.On(places), nil
	}
	e.parts = append(e.parts, part)
	return part
}

// alone waits until nobody else works, neither on ranks nor beside them.
func (e *Engine) alone(ctx context.Context) (release func(), err error) {
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
