//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import "sync/atomic"

// marks tells how far the stream has got: the device writes the low half of a mark into pinned memory, which the host
// reads without asking the driver.
type marks struct {
	place  *Pinned // 4 bytes
	issued atomic.Int64
}

// Mark implements engine.Marker. Marks must grow, by less than 2^32 while one is under way. Marks during a capture are
// left out; the next one after it stands for them.
func (s *Stream) Mark(n int64) {
	s.marks.issued.Store(n) // first, so that what Marked finds in the memory is never ahead of it
	if !s.capture {
		s.do(func(e *C.pb_error) { C.pb_write(s.dev.c, s.at, s.marks.place.at, C.uint32_t(uint32(n)), e) })
	}
}

// Marked implements engine.Marker. It may be called after Close until the device is closed, but then means nothing.
func (s *Stream) Marked() int64 {
	low := atomic.LoadUint32((*uint32)(s.marks.place.at))
	n := s.marks.issued.Load()
	return n - int64(uint32(n)-low)
}
