//go:build cgo

package driver

/*
#cgo noescape pb_launch
#cgo nocallback pb_launch
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"patchbay/engine"
)

// Stream is one stream of a device: calls return when they are enqueued. One goroutine uses a value at a time, but
// another one may wait for what a Download returns. The first error is kept until Sync has returned it; until then
// calls do nothing and downloads fail with it.
type Stream struct {
	dev     *Device
	at      C.uint64_t
	err     error
	e       C.pb_error // the error of a call, here so that no call allocates
	capture bool       // see BeginCapture
	before  func()     // see Postpone; nil: nothing
	aloft   C.uint64_t // see OnSecondStream; 0: not made yet
	up      ring
	down    []*Pinned // free buffers of downloads, without a lock: Wait returns its buffer through done
	done    chan *Pinned
	marks   marks
	clock   clock
	inbox   inbox

	pageable atomic.Int64 // see Pageable

	broken atomic.Pointer[error] // see Break
}

// NewStream makes a stream. Blocks of an urgent one start before waiting blocks of others.
func (dev *Device) NewStream(urgent bool) (*Stream, error) {
	s := &Stream{dev: dev, done: make(chan *Pinned, 64)}
	s.up.dev = dev
	first := C.int(0)
	if urgent {
		first = 1
	}
	if err := try(func(e *C.pb_error) { C.pb_stream_new(dev.c, first, &s.at, e) }); err != nil {
		return nil, err
	}
	place, err := dev.places.take(func() (*Pinned, error) { return dev.newPinned(4) })
	if err != nil {
		return nil, errors.Join(err, dev.freeStream(s.at))
	}
	atomic.StoreUint32((*uint32)(place.at), 0)
	s.marks.place = place
	return s, nil
}

func (dev *Device) freeStream(at C.uint64_t) error {
	if at == 0 {
		return nil
	}
	return try(func(e *C.pb_error) { C.pb_stream_free(dev.c, at, e) })
}

// Close releases what the stream holds; it must have been drained. Memory of Alloc is the caller's to free.
func (s *Stream) Close() error {
	errs := []error{s.inbox.free(s.dev), s.up.free()}
	s.takeBack()
	for _, p := range s.down {
		errs = append(errs, s.dev.release(p))
	}
	s.clock.free(s.dev)
	s.dev.places.put(s.marks.place)
	s.dev.points.drop(s)
	return errors.Join(append(errs, s.dev.freeStream(s.aloft), s.dev.freeStream(s.at))...)
}

func (s *Stream) Device() *Device { return s.dev }

// Handle returns the CUstream, for the shims of libraries on top of the driver, which enqueue calls after those issued
// so far.
func (s *Stream) Handle() uint64 {
	s.Flush()
	return uint64(s.at)
}

// Postpone makes the stream call flush before every call that it enqueues and every wait, so that the owner of the
// stream may hold back a launch until it knows the next one. flush may launch.
func (s *Stream) Postpone(flush func()) { s.before = flush }

// Flush enqueues what has been held back.
func (s *Stream) Flush() {
	if s.before != nil {
		s.before()
	}
}

// CountHost makes l count the pinned memory that all streams of the device take from now on.
func (s *Stream) CountHost(l *engine.Ledger) { s.dev.host.Store(l) }

// Location implements engine.Located with "cuda:N".
func (s *Stream) Location() string { return s.dev.Location() }

// DeviceMemory implements engine.Located. Memory that other processes use is not free.
func (s *Stream) DeviceMemory() (free, total int64, err error) { return s.dev.Memory() }

// Sync waits until everything enqueued has run and returns the first error. Unless the device is lost, the stream can
// then be used again; the caller must repeat the calls that were left out.
func (s *Stream) Sync() error {
	if err := s.Drain(); err != nil {
		return err
	}
	return s.ending()
}

// Drain is Sync, but it ignores Break.
func (s *Stream) Drain() error {
	s.Flush()
	s.dev.waits.Add(1)
	s.Note(try(func(e *C.pb_error) { C.pb_stream_sync(s.dev.c, s.at, e) }))
	err := s.err
	if !errors.Is(err, engine.ErrDeviceLost) {
		s.err = nil
	}
	return err
}

// Break makes every wait for results return err from now on, unless the stream has an error of its own: what it was to
// receive will not arrive. Only the first Break counts. It is safe for concurrent use.
func (s *Stream) Break(err error) { s.broken.CompareAndSwap(nil, &err) }

// ending returns the error of Break, nil if it was not called.
func (s *Stream) ending() error {
	if e := s.broken.Load(); e != nil {
		return *e
	}
	return nil
}

// Err returns the first error of the stream so far, without waiting.
func (s *Stream) Err() error { return s.err }

// Note makes err the error of the stream unless it has one.
func (s *Stream) Note(err error) {
	if s.err == nil {
		s.err = err
	}
}

// Forgive clears the error, for callers that do in another way what was refused.
func (s *Stream) Forgive() { s.err = nil }

// Launch enqueues a kernel on a grid of x, y and z blocks, at least 1 each. args is the struct of its arguments, which
// holds no Go pointers.
func (s *Stream) Launch(f Function, x, y, z, threads, shared int, args unsafe.Pointer) {
	s.Flush()
	if s.err != nil {
		return
	}
	s.dev.launches.Add(1)
	if C.pb_launch(s.dev.c, s.at, C.uint64_t(f), C.uint(x), C.uint(y), C.uint(z), C.uint(threads), C.uint(shared), args,
		&s.e) != 0 {
		s.Note(errorOf(&s.e))
	}
}

// Issue makes a library enqueue a launch of its own: call passes the stream and the pb_error to its shim.
func (s *Stream) Issue(call func(stream uint64, e unsafe.Pointer)) {
	s.do(func(e *C.pb_error) {
		s.dev.launches.Add(1)
		call(uint64(s.at), unsafe.Pointer(e))
	})
}

// do runs a call of the shim, unless there was an error before.
func (s *Stream) do(call func(e *C.pb_error)) {
	s.Flush()
	if s.err == nil {
		s.e.code = 0
		call(&s.e)
		s.Note(errorOf(&s.e))
	}
}

// Alloc implements engine.Ops; the memory is zero for every stream when it returns.
func (s *Stream) Alloc(bytes int) (engine.Buf, error) {
	at, err := s.dev.Alloc(bytes)
	if err != nil {
		return engine.Buf{}, err
	}
	s.do(func(e *C.pb_error) { C.pb_set(s.dev.c, s.at, C.uint64_t(at), 0, C.uint64_t(max(1, bytes)), e) })
	if err := s.Drain(); err != nil {
		return engine.Buf{}, errors.Join(err, s.dev.Free(at))
	}
	return engine.Buf{Dev: at}, nil
}

// Free implements engine.Ops. It waits for the whole device first, because other streams may be using the memory.
func (s *Stream) Free(b engine.Buf) {
	if b.Dev != 0 {
		s.Flush()
		s.Note(s.dev.Free(b.Dev))
	}
}

// OnSecondStream runs f with its calls on a second stream: calls issued before continue meanwhile, calls issued after
// wait for it.
func (s *Stream) OnSecondStream(f func() error) error {
	if s.aloft == 0 {
		if err := try(func(e *C.pb_error) { C.pb_stream_new(s.dev.c, 0, &s.aloft, e) }); err != nil {
			return err
		}
	}
	s.Flush()
	computing := s.at
	s.at = s.aloft
	err := f()
	end := s.Record()
	s.at = computing
	s.After(end)
	s.Forget(end)
	return err
}

// Address returns the device address of the first element of t, 0 for absent tensors.
func Address(op string, t engine.Tensor) uint64 {
	if t.IsZero() || t.Len() == 0 {
		return 0
	}
	if t.Buf.Dev == 0 {
		panic(&engine.ShapeError{Op: op, Rule: "operands of the cuda backend lie in device memory", Shapes: t.String()})
	}
	return t.Buf.Dev + uint64(t.Off*t.DType.Size())
}

// Move enqueues a copy between places of the device.
func (s *Stream) Move(dst, src uint64, bytes int) {
	if bytes > 0 {
		s.do(func(e *C.pb_error) {
			C.pb_move(s.dev.c, s.at, C.uint64_t(dst), C.uint64_t(src), C.uint64_t(bytes), e)
		})
	}
}
