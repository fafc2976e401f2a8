//go:build cgo

// Package dnn computes attention by cuDNN, which is loaded at run time (cudnn9.h declares what is used of it, dnn.h
// what Go calls). It knows shapes of attention and the library's plans for them. It does not decide when to use the
// library and does not check its numbers.
package dnn

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra -I${SRCDIR}/../driver
#cgo LDFLAGS: -ldl
#cgo noescape pb_dnn_attend
#cgo nocallback pb_dnn_attend
#include "dnn.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/library"
)

// Library is the opened library. It stays open for the life of the process.
type Library struct{ c *C.pb_dnn }

// Open opens the library, with those that it consists of, where s finds it, and returns what it found. It returns nil
// if the library cannot be used.
func Open(d *driver.Driver, s *library.Search) (*Library, driver.Found) {
	handle, found := d.Load(s, library.CUDNN())
	if handle == nil {
		return nil, found
	}
	l := &Library{}
	if err := driver.Try(func(e *C.pb_error) { C.pb_dnn_load(handle, &l.c, e) }); err != nil {
		return nil, driver.Found{Err: fmt.Errorf("%s: %w", found.Path, err)}
	}
	return l, found
}

// Stream is the library's handle for a stream.
type Stream struct {
	on *driver.Stream
	c  *C.pb_dnn_stream
}

// On makes the library's handle for a stream.
func (l *Library) On(s *driver.Stream) (*Stream, error) {
	d := &Stream{on: s}
	if err := driver.Try(func(e *C.pb_error) {
		C.pb_dnn_open(l.c, (*C.pb_device)(s.Device().Handle()), C.uint64_t(s.Handle()), &d.c, e)
	}); err != nil {
		return nil, err
	}
	return d, nil
}

// Close releases the handle.
func (s *Stream) Close() error { return driver.Try(func(e *C.pb_error) { C.pb_dnn_close(s.c, e) }) }

// Space is the workspace of plans in bytes. On GPUs of compute capability 8 and 9 they want 256 bytes or none.
const Space = 1 << 20

// Execution is the attention of one shape with the engine that the library has chosen for it.
type Execution struct{ c *C.pb_dnn_plan }

// Plan asks for a plan of attention in bf16. The error says why there is none.
func (s *Stream) Plan(a *engine.AttentionShape) (*Execution, error) {
	long := func(n [3]int) [3]C.int64_t { return [3]C.int64_t{C.int64_t(n[0]), C.int64_t(n[1]), C.int64_t(n[2])} }
	c := C.pb_dnn_shape{
		b: C.int(a.B), h: C.int(a.H), lq: C.int(a.Lq), lk: C.int(a.Lk), d: C.int(a.D), q: long(a.Q), k: long(a.K),
		v: long(a.V), o: long(a.O), lse: [2]C.int64_t{C.int64_t(a.LSE[0]), C.int64_t(a.LSE[1])},
	}
	if a.Sums {
		c.stats = 1
	}
	var p *C.pb_dnn_plan
	if err := driver.Try(func(e *C.pb_error) { C.pb_dnn_plan_new(s.c, &c, Space, &p, e) }); p == nil {
		return nil, err
	}
	return &Execution{p}, nil
}

// Drop frees a plan, which may be nil.
func (s *Stream) Drop(p *Execution) {
	if p != nil {
		C.pb_dnn_plan_free(s.c, p.c)
	}
}

// Attend enqueues attention. at holds the addresses of queries, keys, values, the result and the log-sum-exp; workspace
// has Space bytes.
func (s *Stream) Attend(p *Execution, scale float32, at [5]uint64, workspace uint64) {
	s.on.Issue(func(_ uint64, e unsafe.Pointer) {
		C.pb_dnn_attend(s.c, p.c, C.float(scale), C.uint64_t(at[0]), C.uint64_t(at[1]), C.uint64_t(at[2]),
			C.uint64_t(at[3]), C.uint64_t(at[4]), C.uint64_t(workspace), (*C.pb_error)(e))
	})
}
