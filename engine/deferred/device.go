package deferred

import (
	"math/rand/v2"
	"slices"
	"sync"
)

// Device runs the calls of several streams as late as the host's waits allow, in an order of its own where they leave a
// choice: nothing runs before somebody waits for a result, and then only what that result needs. A seed other than 0
// also runs other calls early, another order for every seed.
type Device struct {
	mu      sync.Mutex
	moved   *sync.Cond // a call was issued or has run, or something failed
	rng     *rand.Rand // nil: never early
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

// Stream is a queue of calls that run in order. Calls come from one goroutine; waits may come from others.
type Stream struct {
	d     *Device
	queue []Call
	first int // number of queue[0], counted from the first call ever
	err   error
}

// Call does its work and reports true, or reports false and the streams that have to move first. The device's lock is
// held.
type Call func() (done bool, wants []*Stream)

// Event is the end of one call.
type Event struct {
	s *Stream
	n int
}

// Stream adds a stream to the device.
func (d *Device) Stream() *Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &Stream{d: d}
	d.streams = append(d.streams, s)
	return s
}

// Push issues a call.
func (s *Stream) Push(c Call) Event {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.queue = append(s.queue, c)
	s.d.moved.Broadcast()
	return Event{s, s.first + len(s.queue) - 1}
}

// After holds the calls that follow back until e.
func (s *Stream) After(e Event) Event {
	return s.Push(func() (bool, []*Stream) {
		if e.over() {
			return true, nil
		}
		return false, []*Stream{e.s}
	})
}

// Record returns the end of the last call issued.
func (s *Stream) Record() Event {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return Event{s, s.first + len(s.queue) - 1}
}

// Fail makes every wait of the stream return err; the first one counts. It is called from a Call.
func (s *Stream) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// Device returns the stream's device.
func (s *Stream) Device() *Device { return s.d }

// Locked calls f while no call runs, and wakes everybody who waits.
func (d *Device) Locked(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	d.moved.Broadcast()
}

func (e Event) over() bool { return e.s == nil || e.s.first > e.n }

// Wait runs what e needs and returns the error of its stream. The zero Event is over.
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

// early runs some calls that nobody waits for yet, with a seed other than 0.
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

// step runs one call that s waits for, its own first one if possible, and reports whether one ran. seen are streams
// that wait for s.
func (d *Device) step(s *Stream, seen []*Stream) bool {
	if len(s.queue) == 0 || slices.Contains(seen, s) {
		return false
	}
	done, wants := s.queue[0]()
	if done {
		s.queue[0] = nil // what it holds is free
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
