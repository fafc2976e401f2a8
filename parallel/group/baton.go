package group

import (
	"math/rand/v2"
	"sync"
)

// Baton lets the goroutines of one team run one at a time: who holds it runs until it has to wait for another, then a
// generator of a fixed seed picks the next among those that can go on. Interleavings are reproducible and many can be
// tried, and when nobody can go on the deadlock is known at once. A nil baton lets everybody run freely.
//
// Every wait of ranks, samplers and leader goes through Block, with a condition that whoever gives the baton away looks
// at. Locks that conditions take must not be held there.
type Baton struct {
	seed   uint64
	mu     sync.Mutex
	quiet  *sync.Cond // nobody runs
	rng    *rand.Rand
	seats  []*seat
	holder *seat
	Trace  []string // who got the baton, since the leader came
	// called, with mu held, when all wait and no condition holds; it must make some condition true, or nothing happens
	Stuck func()
	told  bool // Stuck has been called
}

// seat is one goroutine's place.
type seat struct {
	name  string
	ready func() bool // what it waits for
	wake  chan struct{}
	idle  bool // waits for commands: no deadlock if all do
}

// NewBaton makes a baton, nil for seed 0.
func NewBaton(seed uint64) *Baton {
	if seed == 0 {
		return nil
	}
	b := &Baton{seed: seed, rng: rand.New(rand.NewPCG(seed, 0))}
	b.quiet = sync.NewCond(&b.mu)
	return b
}

// Join adds a goroutine that is about to start; it must call start first and leave last.
func (b *Baton) Join(name string) *seat {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &seat{name: name, ready: func() bool { return true }, wake: make(chan struct{}, 1)}
	b.seats = append(b.seats, s)
	return s
}

// Start waits for the first turn of a goroutine that has joined.
func (b *Baton) Start(s *seat) {
	if b == nil {
		return
	}
	b.Kick()
	<-s.wake
}

// Leave ends a goroutine's part; it holds the baton.
func (b *Baton) Leave(s *seat) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.seats {
		if other == s {
			b.seats = append(b.seats[:i], b.seats[i+1:]...)
			break
		}
	}
	b.pass()
}

// Enter makes the calling goroutine, the leader, the holder as soon as all others wait, and starts the sequence of the
// seed anew.
func (b *Baton) Enter() (leave func()) {
	if b == nil {
		return func() {}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// not ready: it takes the baton itself when nobody else wants it
	s := &seat{name: "leader", wake: make(chan struct{}, 1), idle: true}
	b.seats = append(b.seats, s)
	for {
		if b.holder == nil {
			if b.pass(); b.holder == nil {
				break
			}
		}
		b.quiet.Wait()
	}
	b.rng, b.Trace, b.holder, b.told, s.idle = rand.New(rand.NewPCG(b.seed, 0)), nil, s, false, false
	return func() { b.Leave(s) }
}

// Block gives the baton away until ready holds and it comes back. idle tells that the wait is for new work.
func (b *Baton) Block(idle bool, ready func() bool) {
	b.mu.Lock()
	s := b.holder
	s.ready, s.idle = ready, idle
	b.pass()
	b.mu.Unlock()
	<-s.wake
}

// Kick starts the game again after somebody without a seat has changed a condition.
func (b *Baton) Kick() {
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
func (b *Baton) pass() {
	b.holder = nil
	for range 2 {
		var able []*seat
		waits := false
		for _, s := range b.seats {
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
		if !waits || b.Stuck == nil || b.told {
			break
		}
		b.told = true
		b.Stuck()
	}
	b.quiet.Broadcast()
}

// Seated reports whether at most n goroutines take part; for conditions, which are looked at with mu held.
func (b *Baton) Seated(n int) bool { return len(b.seats) <= n }
