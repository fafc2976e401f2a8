package scope

import (
	"math/rand/v2"
	"slices"
	"sync"
)

// Scheduler runs the goroutines of one team one at a time: whoever has the turn runs until it must wait for another
// goroutine, then a random generator with a fixed seed picks the next one of those that can continue. Interleavings are
// therefore reproducible, many can be tried, and a deadlock is detected as soon as no goroutine can continue. A nil
// Scheduler lets all goroutines run freely; Block and AtMost must not be called on it.
//
// Every wait of ranks, samplers and leader goes through Block with a condition. Conditions are evaluated by the
// goroutine that gives up the turn, which must not hold a lock that a condition acquires.
type Scheduler struct {
	seed   uint64
	mu     sync.Mutex
	quiet  *sync.Cond // nobody has the turn
	rng    *rand.Rand
	tasks  []*task
	holder *task
	Trace  []string // who got the turn, since the leader's last Enter
	// Stuck is called with mu held, at most once per Enter, when no task can continue although not all are idle. It
	// must make some condition true; otherwise nobody continues.
	Stuck       func()
	stuckCalled bool // since the last Enter
}

// task is one goroutine under a Scheduler.
type task struct {
	name  string
	ready func() bool // what it waits for; nil: pass must not pick it
	wake  chan struct{}
	idle  bool // waits for new work: no deadlock if all do
}

// NewScheduler returns a Scheduler, nil for seed 0.
func NewScheduler(seed uint64) *Scheduler {
	if seed == 0 {
		return nil
	}
	b := &Scheduler{seed: seed, rng: rand.New(rand.NewPCG(seed, 0))}
	b.quiet = sync.NewCond(&b.mu)
	return b
}

// Join registers a goroutine that is about to start. It must call Start first and Leave last.
func (b *Scheduler) Join(name string) *task {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &task{name: name, ready: func() bool { return true }, wake: make(chan struct{}, 1)}
	b.tasks = append(b.tasks, s)
	return s
}

// Start blocks until a goroutine that has joined gets its first turn.
func (b *Scheduler) Start(s *task) {
	if b == nil {
		return
	}
	b.Wake()
	<-s.wake
}

// Leave removes the calling goroutine, which must have the turn, and passes the turn on.
func (b *Scheduler) Leave(s *task) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks = slices.DeleteFunc(b.tasks, func(other *task) bool { return other == s })
	b.pass()
}

// Enter gives the turn to the calling goroutine, the leader, once no other task can continue, and restarts the random
// sequence from the seed. The leader must call leave when it is done.
func (b *Scheduler) Enter() (leave func()) {
	if b == nil {
		return func() {}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// ready is nil, so pass does not pick it: the leader takes the turn below, once nobody else can continue
	s := &task{name: "leader", wake: make(chan struct{}, 1), idle: true}
	b.tasks = append(b.tasks, s)
	for {
		if b.holder == nil {
			if b.pass(); b.holder == nil {
				break
			}
		}
		b.quiet.Wait()
	}
	b.rng, b.Trace, b.holder, b.stuckCalled, s.idle = rand.New(rand.NewPCG(b.seed, 0)), nil, s, false, false
	return func() { b.Leave(s) }
}

// Block gives up the turn until ready returns true and the caller gets the turn again. The caller must have the turn.
// idle says that the wait is for new work.
func (b *Scheduler) Block(idle bool, ready func() bool) {
	b.mu.Lock()
	s := b.holder
	s.ready, s.idle = ready, idle
	b.pass()
	b.mu.Unlock()
	<-s.wake
}

// Wake re-evaluates all conditions, after a goroutine outside the team has changed one.
func (b *Scheduler) Wake() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holder == nil {
		b.pass()
	}
}

// pass gives the turn to a random task whose condition holds, if there is one. The caller must hold mu.
func (b *Scheduler) pass() {
	b.holder = nil
	for range 2 {
		var able []*task
		waits := false
		for _, s := range b.tasks {
			if s.ready != nil && s.ready() {
				able = append(able, s)
			}
			waits = waits || !s.idle
		}
		if len(able) > 0 {
			next := able[b.rng.IntN(len(able))]
			b.holder, next.ready, next.idle = next, nil, false
			b.Trace = append(b.Trace, next.name)
			next.wake <- struct{}{}
			return
		}
		if !waits || b.Stuck == nil || b.stuckCalled {
			break
		}
		b.stuckCalled = true
		b.Stuck()
	}
	b.quiet.Broadcast()
}

// AtMost reports whether at most n goroutines take part. It is for conditions, which are evaluated with mu held.
func (b *Scheduler) AtMost(n int) bool { return len(b.tasks) <= n }
