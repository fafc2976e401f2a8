//go:build cgo

// Package lt multiplies bf16 matrices by cuBLASLt, which is loaded at run time (cublaslt.h declares what is used of it,
// lt.h what Go calls). It knows shapes, the library's epilogues and its choice of an algorithm. It knows no layers and
// weights, does not decide when to use the library, and does not check its numbers.
package lt

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra -I${SRCDIR}/../driver
#cgo LDFLAGS: -ldl
#cgo noescape pb_lt_matmul
#cgo nocallback pb_lt_matmul
#include "lt.h"
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
type Library struct{ c *C.pb_lt }

// Open opens the library where s finds it, and returns what it found. It returns nil without an error if there is none.
func Open(d *driver.Driver, s *library.Search) (*Library, driver.Found, error) {
	handle, found := d.Load(s, library.CUBLASLt())
	if handle == nil {
		return nil, found, nil
	}
	l := &Library{}
	if err := driver.Try(func(e *C.pb_error) { C.pb_lt_load(handle, &l.c, e) }); err != nil {
		return nil, found, fmt.Errorf("%s: %w", found.Path, err)
	}
	return l, found, nil
}

// Device is the library's handle for a device. Several streams share it.
type Device struct {
	Space int // bytes of workspace that a product has
	c     *C.pb_lt_device
}

// On makes the library's handle for a device.
func (l *Library) On(dev *driver.Device) (*Device, error) {
	const hopper = 9
	d := &Device{Space: 4 << 20} // what NVIDIA advises
	if dev.Major >= hopper {
		d.Space = 32 << 20
	}
	return d, driver.Try(func(e *C.pb_error) { C.pb_lt_open(l.c, (*C.pb_device)(dev.Handle()), &d.c, e) })
}

// Close releases the handle.
func (d *Device) Close() error {
	if d.c == nil {
		return nil
	}
	return driver.Try(func(e *C.pb_error) { C.pb_lt_close(d.c, e) })
}

// Shape is a product y [M, N] = act(alpha x [M, K] w [N, K]^T + beta c [M, N] + bias [N]), everything bf16; LD count
// elements between rows.
type Shape struct {
	M, N, K            int
	LDX, LDW, LDC, LDY int
	Act                engine.Act // one for which Has is true
	Bias               bool
}

// Has reports whether the library has an epilogue for act.
func Has(act engine.Act) bool { return epilogue(act) != 0 }

// epilogue returns that of an activation without a bias, 0 if there is none.
func epilogue(act engine.Act) C.int {
	switch act {
	case engine.ActNone:
		return C.PB_LT_DEFAULT
	case engine.GELUTanh:
		return C.PB_LT_GELU
	case engine.ReLU:
		return C.PB_LT_RELU
	}
	return 0
}

// Matmul is a shape with the algorithm that the library has chosen for it.
type Matmul struct{ c *C.pb_lt_plan }

// Plan asks for the best algorithm. It returns nil without an error if there is none within the workspace.
func (d *Device) Plan(s *Shape) (*Matmul, error) {
	c := C.pb_lt_shape{
		m: C.int(s.M), n: C.int(s.N), k: C.int(s.K), epilogue: epilogue(s.Act), ldx: C.int64_t(s.LDX),
		ldw: C.int64_t(s.LDW), ldc: C.int64_t(s.LDC), ldy: C.int64_t(s.LDY),
	}
	if s.Bias {
		c.epilogue = c.epilogue&^C.PB_LT_DEFAULT | C.PB_LT_BIAS
	}
	var p *C.pb_lt_plan
	if err := driver.Try(func(e *C.pb_error) { C.pb_lt_plan_new(d.c, &c, C.uint64_t(d.Space), &p, e) }); p == nil {
		return nil, err
	}
	return &Matmul{p}, nil
}

// Drop frees a plan, which may be nil.
func (d *Device) Drop(p *Matmul) {
	if p != nil {
		C.pb_lt_plan_free(d.c, p.c)
	}
}

// Call is one product: addresses, and the factors alpha and beta (see Shape).
type Call struct {
	X, W, C, Y, Bias, Workspace uint64
	Alpha, Beta                 float32
}

// Multiply enqueues a product.
func (d *Device) Multiply(on *driver.Stream, p *Matmul, c *Call) {
	on.Issue(func(stream uint64, e unsafe.Pointer) {
		C.pb_lt_matmul(d.c, C.uint64_t(stream), p.c, C.float(c.Alpha), C.uint64_t(c.X), C.uint64_t(c.W), C.float(c.Beta),
			C.uint64_t(c.C), C.uint64_t(c.Y), C.uint64_t(c.Bias), C.uint64_t(c.Workspace), C.uint64_t(d.Space),
			(*C.pb_error)(e))
	})
}
