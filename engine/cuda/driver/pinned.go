//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"

	"patchbay/engine"
)

// Pinned is page-locked host memory, which the device copies from and to by itself.
type Pinned struct {
	Bytes []byte
	at    unsafe.Pointer
	event C.uint64_t // recorded after the last copy
	used  bool       // the event was recorded

	ledger   *engine.Ledger  // that counts it; nil: it is not counted
	pageable *runtime.Pinner // of memory of the Go heap, see newHost; nil: it is page-locked
}

// newHost takes memory for copies: pinned, or pageable if the system has no more page-locked memory for this process.
// The driver copies from pageable memory before a call returns, so nothing runs beside such copies.
func (dev *Device) newHost(bytes int) (*Pinned, error) {
	p, err := dev.newPinned(bytes)
	var refused *Error
	if !errors.As(err, &refused) || !errors.Is(err, engine.ErrOutOfMemory) {
		return p, err
	}
	p = &Pinned{Bytes: make([]byte, bytes), pageable: new(runtime.Pinner)}
	p.at = unsafe.Pointer(unsafe.SliceData(p.Bytes))
	p.pageable.Pin(p.at)
	if p.event, err = dev.newEvent(); err != nil {
		p.pageable.Unpin()
		return nil, err
	}
	return p, nil
}

// newPinned takes pinned memory and an event.
func (dev *Device) newPinned(bytes int) (*Pinned, error) {
	dev.allocs.Add(1)
	p := &Pinned{ledger: dev.host.Load()}
	if err := p.ledger.Take(int64(bytes)); err != nil {
		return nil, err
	}
	if err := try(func(e *C.pb_error) { C.pb_host_alloc(dev.c, &p.at, C.uint64_t(bytes), e) }); err != nil {
		p.ledger.Give(int64(bytes))
		return nil, err
	}
	p.Bytes = unsafe.Slice((*byte)(p.at), bytes)
	var err error
	if p.event, err = dev.newEvent(); err != nil {
		p.ledger.Give(int64(bytes))
		return nil, errors.Join(err, try(func(e *C.pb_error) { C.pb_host_free(dev.c, p.at, e) }))
	}
	return p, nil
}

// wait blocks until the last copy of p is done.
func (dev *Device) wait(p *Pinned) error {
	if !p.used {
		return nil
	}
	dev.waits.Add(1)
	return try(func(e *C.pb_error) { C.pb_event_sync(dev.c, p.event, e) })
}

// release frees pinned memory.
func (dev *Device) release(p *Pinned) error {
	if p.pageable != nil {
		defer p.pageable.Unpin()
		return errors.Join(dev.wait(p), dev.freeEvent(p.event))
	}
	defer p.ledger.Give(int64(len(p.Bytes)))
	return errors.Join(dev.wait(p), dev.freeEvent(p.event),
		try(func(e *C.pb_error) { C.pb_host_free(dev.c, p.at, e) }))
}

// ring is memory of newHost that uploads pass through: two buffers, so that one is filled while the other is copied.
type ring struct {
	dev  *Device
	slot [2]*Pinned
	next int
}

// SlotBytes is the size of one buffer that uploads pass through.
const SlotBytes = 8 << 20

// fill allocates the buffers that do not exist yet.
func (r *ring) fill() error {
	for i := range r.slot {
		if r.slot[i] == nil {
			p, err := r.dev.newHost(SlotBytes)
			if err != nil {
				return err
			}
			r.slot[i] = p
		}
	}
	return nil
}

// free frees the buffers.
func (r *ring) free() error {
	var errs []error
	for i, p := range r.slot {
		if p != nil {
			errs = append(errs, r.dev.release(p))
			r.slot[i] = nil
		}
	}
	return errors.Join(errs...)
}

// Slot returns the least recently used of the buffers for uploads, SlotBytes each, once its copy is done.
// The caller must call Send before the next Slot.
func (s *Stream) Slot() (*Pinned, error) {
	r := &s.up
	if err := r.fill(); err != nil {
		return nil, err
	}
	r.next = 1 - r.next
	p := r.slot[r.next]
	return p, r.dev.wait(p)
}

// Send enqueues a copy of the first bytes of p.
func (s *Stream) Send(dst uint64, p *Pinned, bytes int) {
	if bytes == 0 || s.err != nil {
		return
	}
	s.do(func(e *C.pb_error) { C.pb_upload(s.dev.c, s.at, C.uint64_t(dst), p.at, C.uint64_t(bytes), e) })
	s.record(p)
}

// Pageable returns how many copies passed through memory that is not page-locked, because there was no more. It is safe
// for concurrent use.
func (s *Stream) Pageable() int64 { return s.pageable.Load() }

// record marks p as in use until the stream gets here.
func (s *Stream) record(p *Pinned) {
	s.do(func(e *C.pb_error) { C.pb_event_record(s.dev.c, p.event, s.at, e) })
	p.used = true
	if p.pageable != nil {
		s.pageable.Add(1)
	}
}
