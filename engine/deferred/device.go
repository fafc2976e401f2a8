package deferred

import (
	"math/rand/v2"
	"slices"
	"sync"
)

// Device runs the calls of several streams as late as the host's waits allow: nothing runs before the host waits for a
// result, and then only what that result needs. With a seed other than 0 it also runs other calls early, in a random
// order that depends on the seed.
type Device struct {
	mu      sync.Mutex
	moved   *sync.Cond // a call was issued or has run, or something failed
	rng     *rand.Rand // nil: no call runs early
	streams []*Stream
}

// NewDevice makes a device without streams.
func NewDevice(seed uint64) *Device {
	d := &Device{}
	d.moved = sync.NewCond(&d.mu)
	if seed != 0 {
		d.rng = rand.New(rand.NewPCG(seed, 0))
	}
	return d
}

// Stream is a queue of calls that run in order. Calls must be pushed from one goroutine, but others may wait for them.
type Stream struct {
	d     *Device
	queue []Call
	first int // number of queue[0], counted from the stream's first call
	err   error
}

// Call does its work and returns true, or returns false and the streams that have to advance first. The device calls it
// while holding its mutex.
type Call func() (done bool, wants []*Stream)

// Event is the end of one call.
type Event struct {
	s *Stream
	n int
}

func (d *Device) Stream() *Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &Stream{d: d}
	d.streams = append(d.streams, s)
	return s
}

// Push queues a call and returns its end.
func (s *Stream) Push(c Call) Event {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.queue = append(s.queue, c)
	s.d.moved.Broadcast()
	return Event{s, s.first + len(s.queue) - 1}
}

// After makes the calls pushed to s from now on wait for e.
func (s *Stream) After(e Event) Event {
	return s.Push(func() (bool, []*Stream) {
		if e.over() {
			return true, nil
		}
		return false, []*Stream{e.s}
	})
}

// Record returns the end of the last call pushed.
func (s *Stream) Record() Event {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return Event{s, s.first + len(s.queue) - 1}
}

// Fail makes every later wait for the stream return err, unless it failed before. It may be called only from a Call.
func (s *Stream) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *Stream) Device() *Device { return s.d }

// Locked calls f while no call runs, and then wakes all waiting goroutines.
func (d *Device) Locked(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	d.moved.Broadcast()
}

func (e Event) over() bool { return e.s == nil || e.s.first > e.n }

// Wait runs what e depends on and returns the error of its stream. The zero Event is over.
func (e Event) Wait() error {
	if e.s == nil {
		return nil
	}
	d := e.s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for !e.over() {
		d.early()
		if !e.over() && !d.step(e.s, nil) {
			d.moved.Wait()
		}
	}
	return e.s.err
}

// early runs some calls that the host does not wait for yet, if the device has a seed. The caller must hold d.mu.
func (d *Device) early() {
	for d.rng != nil && d.rng.IntN(3) > 0 {
		var busy []*Stream
		for _, s := range d.streams {
			if len(s.queue) > 0 {
				busy = append(busy, s)
			}
		}
		if len(busy) == 0 {
			return
		}
		d.step(busy[d.rng.IntN(len(busy))], nil)
	}
}

// step runs the next call of s, or one that this call depends on, and reports whether one ran. seen holds the streams
// that wait for s. The caller must hold d.mu.
func (d *Device) step(s *Stream, seen []*Stream) bool {
	if len(s.queue) == 0 || slices.Contains(seen, s) {
		return false
	}
	done, wants := s.queue[0]()
	if done {
		s.queue[0] = nil // release what the closure refers to
		s.queue = s.queue[1:]
		s.first++
		d.moved.Broadcast()
		return true
	}
	if d.rng != nil {
		d.rng.Shuffle(len(wants), func(i, j int) { wants[i], wants[j] = wants[j], wants[i] })
	}
	for _, w := range wants {
		if d.step(w, append(seen, s)) {
			return true
		}
	}
	return false
}
