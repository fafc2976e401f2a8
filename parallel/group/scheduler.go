package group

import (
	"math/rand/v2"
	"slices"
	"sync"
)

// Scheduler runs the goroutines of one team one at a time: whoever has the turn runs until it has to wait for another,
// then a generator of a fixed seed picks the next among those that can go on. Interleavings are reproducible and many
// can be tried, and when nobody can go on the deadlock is known at once. A nil Scheduler lets everybody run freely.
//
// Every wait of ranks, samplers and leader goes through Block, with a condition that whoever gives the turn away looks
// at. Locks that conditions take must not be held there.
type Scheduler struct {
	seed   uint64
	mu     sync.Mutex
	quiet  *sync.Cond // nobody runs
	rng    *rand.Rand
	tasks  []*task
	holder *task
	Trace  []string // who had the turn, since the leader came
	// called, with mu held, when all wait and no condition holds; it must make some condition true, or nothing happens
	Stuck       func()
	stuckCalled bool // Stuck has been called
}

// task is one goroutine.
type task struct {
	name  string
	ready func() bool // what it waits for
	wake  chan struct{}
	idle  bool // waits for commands: no deadlock if all do
}

// NewScheduler makes a Scheduler, nil for seed 0.
func NewScheduler(seed uint64) *Scheduler {
	if seed == 0 {
		return nil
	}
	b := &Scheduler{seed: seed, rng: rand.New(rand.NewPCG(seed, 0))}
	b.quiet = sync.NewCond(&b.mu)
	return b
}

// Join adds a goroutine that is about to start; it must call start first and leave last.
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

// Start waits for the first turn of a goroutine that has joined.
func (b *Scheduler) Start(s *task) {
	if b == nil {
		return
	}
	b.Wake()
	<-s.wake
}

// Leave ends a goroutine's part; it has the turn.
func (b *Scheduler) Leave(s *task) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks = slices.DeleteFunc(b.tasks, func(other *task) bool { return other == s })
	b.pass()
}

// Enter makes the calling goroutine, the leader, the holder as soon as all others wait, and starts the sequence of the
// seed anew.
func (b *Scheduler) Enter() (leave func()) {
	if b == nil {
		return func() {}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// not ready: it takes the turn itself when nobody else wants it
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

// Block gives the turn away until ready holds and it comes back. idle tells that the wait is for new work.
func (b *Scheduler) Block(idle bool, ready func() bool) {
	b.mu.Lock()
	s := b.holder
	s.ready, s.idle = ready, idle
	b.pass()
	b.mu.Unlock()
	<-s.wake
}

// Wake looks at all conditions again after somebody who is no task has changed one.
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

// pass picks the next holder; mu is held.
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

// AtMost reports whether at most n goroutines take part; for conditions, which are looked at with mu held.
func (b *Scheduler) AtMost(n int) bool { return len(b.tasks) <= n }
