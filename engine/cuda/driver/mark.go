//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
)

// marks is how far the stream has come: the device writes the low half of a mark into pinned memory, which the host
// reads without asking the driver.
type marks struct {
	place  *Pinned // 4 bytes
	issued atomic.Int64
}

// Mark implements engine.Marker. Marks grow, by less than 2^32 while one is under way. Those of calls that are captured
// are left out: the next one behind them stands for them.
func (s *Stream) Mark(n int64) {
	s.marks.issued.Store(n) // first: what Marked finds in the memory is never ahead of it
	if !s.capture {
		s.do(func(e *C.pb_error) { C.pb_write(s.dev.c, s.at, s.marks.place.at, C.uint32_t(uint32(n)), e) })
	}
}

// Marked implements engine.Marker. After Close it may be called until the device is closed, and says nothing any more.
func (s *Stream) Marked() int64 {
	low := atomic.LoadUint32((*uint32)(s.marks.place.at))
	n := s.marks.issued.Load()
	return n - int64(uint32(n)-low)
}

// places are pieces of pinned memory for marks. They stay with the device: whoever watches a stream may read its marks
// while it is closed.
type places struct {
	mu   sync.Mutex
	idle []*Pinned
}

// take returns a place that holds 0.
func (p *places) take(dev *Device) (*Pinned, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		place := p.idle[n-1]
		p.idle = p.idle[:n-1]
		atomic.StoreUint32((*uint32)(place.at), 0)
		return place, nil
	}
	place, err := dev.newPinned(4)
	if err != nil {
		return nil, err
	}
	atomic.StoreUint32((*uint32)(place.at), 0)
	return place, nil
}

// put takes a place back, of a stream that has ended.
func (p *places) put(place *Pinned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, place)
}

// free gives all places back to the driver.
func (p *places) free(dev *Device) error {
	var errs []error
	for _, place := range p.idle {
		errs = append(errs, dev.release(place))
	}
	p.idle = nil
	return errors.Join(errs...)
}
