//go:build cgo

package driver

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"patchbay/engine"
)

// Counts counts what a device was asked to do since it was opened.
type Counts struct {
	Launches, Allocations, Waits int64
	Calls                        int64 // all calls of the driver, these and others
}

// Device is one GPU with its context. Several streams share it; its methods may be called from several goroutines.
type Device struct {
	Info
	c         *C.pb_device
	modules   []C.uint64_t
	launches  atomic.Int64
	allocs    atomic.Int64
	waits     atomic.Int64
	places    freeList[*Pinned]    // of marks, which may still be read after their stream is closed
	timed     freeList[C.uint64_t] // events of stamps
	points    points
	links     peers
	host      atomic.Pointer[engine.Ledger] // counts pinned memory; nil: it is not counted
	CaptureMu sync.Mutex                    // held during waits for the whole device, and while a stream captures
}

// Device opens the device that an Info describes.
func (d *Driver) Device(info Info) (*Device, error) {
	dev := &Device{Info: info}
	return dev, try(func(e *C.pb_error) { C.pb_device_open(d.api, C.int(info.Index), &dev.c, e) })
}

// Module is kernels that the driver has loaded into a device.
type Module uint64

// Function is a kernel of a module.
type Function uint64

// Load loads PTX, which the driver compiles for the device, or code for it (an ELF file), which it may refuse. The
// device keeps the module until Unload or Close.
func (dev *Device) Load(image []byte) (Module, error) {
	ended := C.CBytes(append(image[:len(image):len(image)], 0)) // PTX is a text of C
	defer C.free(ended)
	var module C.uint64_t
	err := try(func(e *C.pb_error) { C.pb_module_load(dev.c, ended, &module, e) })
	if err == nil {
		dev.modules = append(dev.modules, module)
	}
	return Module(module), err
}

// Function looks up a kernel, whose launches may use up to the given number of bytes of shared memory.
func (dev *Device) Function(m Module, kernel string, shared int) (Function, error) {
	name := C.CString(kernel)
	defer C.free(unsafe.Pointer(name))
	var f C.uint64_t
	err := try(func(e *C.pb_error) { C.pb_function(dev.c, C.uint64_t(m), name, C.int(shared), &f, e) })
	return Function(f), err
}

// Handle returns the pb_device of shim.h, for the shims of libraries on top of the driver.
func (dev *Device) Handle() unsafe.Pointer { return unsafe.Pointer(dev.c) }

// Unload releases all modules; no kernel of theirs may be in use.
func (dev *Device) Unload() error {
	var errs []error
	for _, m := range dev.modules {
		errs = append(errs, try(func(e *C.pb_error) { C.pb_module_free(dev.c, m, e) }))
	}
	dev.modules = nil
	return errors.Join(errs...)
}

// Close releases the modules and the context. Everything allocated on the device must have been freed.
func (dev *Device) Close() error {
	return errors.Join(
		dev.places.free(dev.release), dev.timed.free(dev.freeEvent), dev.points.idle.free(dev.freeEvent), dev.Unload(),
		try(func(e *C.pb_error) { C.pb_device_close(dev.c, e) }),
	)
}

// Counts returns what the device was asked to do so far.
func (dev *Device) Counts() Counts {
	return Counts{
		Launches: dev.launches.Load(), Allocations: dev.allocs.Load(), Waits: dev.waits.Load(),
		Calls: int64(C.pb_calls(dev.c)),
	}
}

// Memory returns the free and the total memory of the device in bytes.
func (dev *Device) Memory() (free, total int64, err error) {
	var f, t C.uint64_t
	err = try(func(e *C.pb_error) { C.pb_memory(dev.c, &f, &t, e) })
	return int64(f), int64(t), err
}

// Alloc allocates bytes of device memory, at least 1, and returns its address.
func (dev *Device) Alloc(bytes int) (uint64, error) {
	dev.allocs.Add(1)
	var at C.uint64_t
	err := try(func(e *C.pb_error) { C.pb_alloc(dev.c, &at, C.uint64_t(max(1, bytes)), e) })
	return uint64(at), err
}

// Free waits until nothing on the device, or on others that exchange with it, can use the memory any more, and frees
// it.
func (dev *Device) Free(at uint64) error {
	if err := dev.Sync(); err != nil {
		return err
	}
	dev.links.sync()
	return try(func(e *C.pb_error) { C.pb_free(dev.c, C.uint64_t(at), e) })
}

// Sync waits for everything that was enqueued on the device.
func (dev *Device) Sync() error {
	dev.waits.Add(1)
	dev.CaptureMu.Lock()
	defer dev.CaptureMu.Unlock()
	return try(func(e *C.pb_error) { C.pb_device_sync(dev.c, e) })
}

// newEvent makes an event without timing, newTimed one with it.
func (dev *Device) newEvent() (C.uint64_t, error) { return dev.event(0) }
func (dev *Device) newTimed() (C.uint64_t, error) { return dev.event(1) }

func (dev *Device) event(timing C.int) (event C.uint64_t, err error) {
	dev.allocs.Add(1)
	err = try(func(e *C.pb_error) { C.pb_event_new(dev.c, &event, timing, e) })
	return event, err
}

func (dev *Device) freeEvent(event C.uint64_t) error {
	return try(func(e *C.pb_error) { C.pb_event_free(dev.c, event, e) })
}
