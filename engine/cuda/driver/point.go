//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import "sync"

// Point is a place in a stream that other streams can wait for. The zero Point is in no stream.
type Point struct{ event C.uint64_t }

// points are the events of a device: those that are idle, and those in use with the stream that recorded them. It is
// safe for concurrent use.
type points struct {
	idle freeList[C.uint64_t]
	mu   sync.Mutex
	used map[C.uint64_t]*Stream
}

func (p *points) take(s *Stream) (C.uint64_t, error) {
	event, err := p.idle.take(s.dev.newEvent)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil {
		p.used = map[C.uint64_t]*Stream{}
	}
	p.used[event] = s
	return event, nil
}

func (p *points) put(event C.uint64_t) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used[event] != nil {
		delete(p.used, event)
		p.idle.put(event)
	}
}

// drop takes back what a stream has recorded and nobody has forgotten. Its exchanges must have ended.
func (p *points) drop(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for event, by := range p.used {
		if by == s {
			delete(p.used, event)
			p.idle.put(event)
		}
	}
}

// Record returns the point after everything issued so far. It stays in use until Forget. Errors are errors of the
// stream.
func (s *Stream) Record() Point {
	s.Flush()
	if s.err != nil {
		return Point{}
	}
	event, err := s.dev.points.take(s)
	if err == nil {
		err = try(func(e *C.pb_error) { C.pb_event_record(s.dev.c, event, s.at, e) })
	}
	s.Note(err)
	return Point{event}
}

// After makes calls issued from now on wait until the stream of p, which may be another device's, has come to p.
func (s *Stream) After(p Point) {
	if p.event != 0 {
		s.do(func(e *C.pb_error) { C.pb_stream_wait(s.dev.c, s.at, p.event, e) })
	}
}

// Forget releases a point of this stream's device. Streams that were told to wait for it still do.
func (s *Stream) Forget(p Point) {
	if p.event != 0 {
		s.dev.points.put(p.event)
	}
}
