//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"math"
	"time"
)

// clock turns events of a stream into times. The driver returns the time between two events as f32 milliseconds, so
// every stamp is measured from the one before it: a fixed start would cost 0.2 ms of precision within an hour.
type clock struct {
	now  time.Duration // time of last
	last C.uint64_t    // the event of the newest stamp whose time is known, 0: none is
	open []*stamp      // in stream order, times not known
}

// stamp is an event in the stream and, once it has been read, its time.
type stamp struct {
	event C.uint64_t
	at    time.Duration
}

// Stamp implements engine.Stamper. Times count from the first stamp; the resolution of the device is half a
// microsecond.
func (s *Stream) Stamp() func() time.Duration {
	s.Flush()
	st := &stamp{}
	if s.err == nil {
		event, err := s.dev.timed.take(s.dev.newTimed)
		if err == nil {
			err = try(func(e *C.pb_error) { C.pb_event_record(s.dev.c, event, s.at, e) })
			st.event = event
			s.clock.open = append(s.clock.open, st)
		}
		s.Note(err)
	}
	return func() time.Duration {
		if s.err == nil {
			s.Note(s.clock.read(s.dev))
		}
		return st.at
	}
}

// read computes the times of all open stamps. The stream must have been synced.
func (c *clock) read(dev *Device) error {
	for len(c.open) > 0 {
		s := c.open[0]
		if c.last != 0 {
			var ms C.float
			if err := try(func(e *C.pb_error) { C.pb_event_elapsed(dev.c, c.last, s.event, &ms, e) }); err != nil {
				return err
			}
			c.now += time.Duration(math.Round(float64(ms) * float64(time.Millisecond)))
			dev.timed.put(c.last)
		}
		c.last, s.at, c.open = s.event, c.now, c.open[1:]
	}
	return nil
}

func (c *clock) free(dev *Device) {
	if c.last != 0 {
		dev.timed.put(c.last)
	}
	for _, s := range c.open {
		dev.timed.put(s.event)
	}
	*c = clock{}
}
