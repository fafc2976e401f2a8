//go:build cgo

package cuda

/*
#include <stdlib.h>
#include "dnn.h"
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"patchbay/engine"
)

// SharedLimit is the most shared memory in bytes that a kernel here may ask for: what a block has on the smallest
// supported GPUs (compute capability 8.6, 8.9 and 12.0).
const SharedLimit = 99 << 10

// Counts says what a device was asked to do since it was opened.
type Counts struct {
	Launches, Allocations, Waits int64
	Calls                        int64 // entries to the driver, all of these and others
}

// Device is one GPU with its context and its loaded kernels. Several Ops share it; its methods may be called from
// several goroutines.
type Device struct {
	Info
	Eager     bool // streams made from now on issue every call (engine.Replayer)
	c         *C.pb_device
	modules   []C.uint64_t
	functions [kernelCount]C.uint64_t
	launches  atomic.Int64
	allocs    atomic.Int64
	waits     atomic.Int64
	places    places
	points    points
	links     links
	blas      blas
	dnn       *C.pb_dnn                     // nil: no cuDNN
	host      atomic.Pointer[engine.Ledger] // counts pinned memory; nil: nobody does
	still     sync.Mutex                    // waits for the whole device, and captures
}

// Device opens device number index and loads the kernels into it. It refuses GPUs that are too old by name.
func (d *Driver) Device(index int) (*Device, error) {
	info, err := d.info(index)
	if err != nil {
		return nil, err
	}
	if err := d.Refusal(&info); err != nil {
		return nil, err
	}
	dev := &Device{Info: info, dnn: d.dnn}
	if err := try(func(e *C.pb_error) { C.pb_device_open(d.api, C.int(index), &dev.c, e) }); err != nil {
		return nil, fmt.Errorf("cuda:%d: %w", index, err)
	}
	err = dev.load()
	if err == nil {
		err = dev.blas.open(d, dev)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cuda:%d: %w", index, err), dev.Close())
	}
	return dev, nil
}

// Refusal says why a device cannot be used, nil if it can: the driver or the GPU is too old.
func (d *Driver) Refusal(info *Info) error {
	switch {
	case d.version < LeastVersion:
		return fmt.Errorf("%s: the driver serves CUDA %d.%d; the kernels need %d.%d, driver 550 or newer",
			info.Location(), d.version/1000, d.version%1000/10, LeastVersion/1000, LeastVersion%1000/10)
	case info.Major < LeastMajor:
		return fmt.Errorf("%s: %s has compute capability %d.%d; %d.0 is the least that works", info.Location(), info.Name,
			info.Major, info.Minor, LeastMajor)
	case info.SharedBytes < SharedLimit:
		return fmt.Errorf("%s: %s gives a block %d bytes of shared memory; the kernels need %d", info.Location(), info.Name,
			info.SharedBytes, SharedLimit)
	}
	return nil
}

// load gives the PTX to the driver and looks every kernel up.
func (dev *Device) load() error {
	files, err := fs.Glob(ptx, "kernels/*.ptx")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := ptx.ReadFile(file)
		if err != nil {
			return err
		}
		source := C.CString(string(text))
		var module C.uint64_t
		err = try(func(e *C.pb_error) { C.pb_module_load(dev.c, source, &module, e) })
		C.free(unsafe.Pointer(source))
		if err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
		dev.modules = append(dev.modules, module)
		for k := range kernelCount {
			if !strings.Contains(string(text), ".entry "+kernels[k].name+"(") {
				continue
			}
			name := C.CString(kernels[k].name)
			err = try(func(e *C.pb_error) {
				C.pb_function(dev.c, module, name, C.int(kernels[k].shared), &dev.functions[k], e)
			})
			C.free(unsafe.Pointer(name))
			if err != nil {
				return fmt.Errorf("load %s: %s: %w", file, kernels[k].name, err)
			}
		}
	}
	for k := range kernelCount {
		if dev.functions[k] == 0 {
			return fmt.Errorf("no PTX has kernel %s", kernels[k].name)
		}
	}
	return nil
}

// Close gives the kernels and the context back. Everything allocated on the device must have been freed.
func (dev *Device) Close() error {
	errs := []error{dev.places.free(dev), dev.points.free(dev), dev.blas.close()}
	for _, m := range dev.modules {
		errs = append(errs, try(func(e *C.pb_error) { C.pb_module_free(dev.c, m, e) }))
	}
	errs = append(errs, try(func(e *C.pb_error) { C.pb_device_close(dev.c, e) }))
	return errors.Join(errs...)
}

// Counts returns what the device was asked to do so far.
func (dev *Device) Counts() Counts {
	return Counts{
		Launches: dev.launches.Load(), Allocations: dev.allocs.Load(), Waits: dev.waits.Load(),
		Calls: int64(C.pb_calls(dev.c)),
	}
}

// Memory returns the free and the whole memory of the device in bytes.
func (dev *Device) Memory() (free, total int64, err error) {
	var f, t C.uint64_t
	err = try(func(e *C.pb_error) { C.pb_memory(dev.c, &f, &t, e) })
	return int64(f), int64(t), err
}

// alloc takes bytes of memory, at least 1.
func (dev *Device) alloc(bytes int) (uint64, error) {
	dev.allocs.Add(1)
	var at C.uint64_t
	err := try(func(e *C.pb_error) { C.pb_alloc(dev.c, &at, C.uint64_t(max(1, bytes)), e) })
	return uint64(at), err
}

// free waits until nothing on the device, or on others that exchange with it, can use the memory any more and gives it
// back.
func (dev *Device) free(at uint64) error {
	if err := dev.Sync(); err != nil {
		return err
	}
	dev.links.sync()
	return try(func(e *C.pb_error) { C.pb_free(dev.c, C.uint64_t(at), e) })
}

// Sync waits for everything that was enqueued on the device.
func (dev *Device) Sync() error {
	dev.waits.Add(1)
	dev.still.Lock()
	defer dev.still.Unlock()
	return try(func(e *C.pb_error) { C.pb_device_sync(dev.c, e) })
}

// pinned is host memory that the device copies from and to by itself.
type pinned struct {
	at    unsafe.Pointer
	bytes []byte
	event C.uint64_t // recorded behind the last copy
	used  bool       // the event was recorded

	ledger *engine.Ledger // that counts it; nil: none does
}

// newPinned takes pinned memory and an event.
func (dev *Device) newPinned(bytes int) (*pinned, error) {
	dev.allocs.Add(1)
	p := &pinned{ledger: dev.host.Load()}
	if err := p.ledger.Take(int64(bytes)); err != nil {
		return nil, err
	}
	if err := try(func(e *C.pb_error) { C.pb_host_alloc(dev.c, &p.at, C.uint64_t(bytes), e) }); err != nil {
		p.ledger.Give(int64(bytes))
		return nil, err
	}
	p.bytes = unsafe.Slice((*byte)(p.at), bytes)
	if err := try(func(e *C.pb_error) { C.pb_event_new(dev.c, &p.event, 0, e) }); err != nil {
		p.ledger.Give(int64(bytes))
		return nil, errors.Join(err, try(func(e *C.pb_error) { C.pb_host_free(dev.c, p.at, e) }))
	}
	return p, nil
}

// wait blocks until the last copy of p is done.
func (dev *Device) wait(p *pinned) error {
	if !p.used {
		return nil
	}
	dev.waits.Add(1)
	return try(func(e *C.pb_error) { C.pb_event_sync(dev.c, p.event, e) })
}

// release gives pinned memory back.
func (dev *Device) release(p *pinned) error {
	defer p.ledger.Give(int64(len(p.bytes)))
	return errors.Join(dev.wait(p),
		try(func(e *C.pb_error) { C.pb_event_free(dev.c, p.event, e) }),
		try(func(e *C.pb_error) { C.pb_host_free(dev.c, p.at, e) }))
}
