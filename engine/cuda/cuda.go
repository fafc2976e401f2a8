//go:build cgo

// Package cuda implements engine.Ops on NVIDIA GPUs of compute capability 8.0 or newer.
//
// Nothing of CUDA is needed to build it: the driver is opened when the program runs (driver.h lists what is used of it,
// shim.h what Go calls), and the kernels are PTX text made beforehand from kernels/*.cu, which the driver compiles for
// the device at hand. The Go files check operands, fill the argument structs of kernels/args.h, choose a kernel and a
// grid and launch; nothing here waits for the device except Sync and the Wait of a Download.
//
// A Driver is the opened library, a Device one GPU with its loaded kernels, an Ops one stream on it. Kernels compute in
// f32 whatever the type of the activations and round once when they store. Addresses of the device are numbers in Go,
// never pointers.
package cuda

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#cgo noescape pb_launch
#cgo nocallback pb_launch
#include <stdlib.h>
#include "dnn.h"
#include "lt.h"
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"
)

// Driver is the opened driver library. It stays open for the life of the process.
type Driver struct {
	api     *C.pb_driver
	path    string
	version int
	lt      *C.pb_lt  // nil: no cuBLASLt
	dnn     *C.pb_dnn // nil: no cuDNN
}

// Open opens the driver library in one of the directories, or where the loader finds it when there are none or it is in
// none of them. The error names what the last attempt said; without a GPU or driver it is an *Error.
func Open(dirs ...string) (*Driver, error) {
	paths := make([]string, 0, len(dirs)+1)
	for _, dir := range dirs {
		paths = append(paths, filepath.Join(dir, Library))
	}
	var last error
	for _, path := range append(paths, Library) {
		d := &Driver{path: path}
		name := C.CString(path)
		last = try(func(e *C.pb_error) { C.pb_driver_open(name, &d.api, e) })
		C.free(unsafe.Pointer(name))
		if last != nil {
			if !errors.Is(last, ErrNotOpened) {
				return nil, fmt.Errorf("%s: %w", path, last) // it is there but refuses: no other one will do better
			}
			continue
		}
		var version C.int
		if err := try(func(e *C.pb_error) { C.pb_driver_version(d.api, &version, e) }); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		d.version = int(version)
		return d, nil
	}
	return nil, last
}

// Path returns the path that the library was opened by.
func (d *Driver) Path() string { return d.path }

// Version returns the newest CUDA version that the driver serves, as 1000 * major + 10 * minor.
func (d *Driver) Version() int { return d.version }

// Devices describes every device, in the driver's order.
func (d *Driver) Devices() ([]Info, error) {
	var count C.int
	if err := try(func(e *C.pb_error) { C.pb_device_count(d.api, &count, e) }); err != nil {
		return nil, err
	}
	list := make([]Info, 0, int(count))
	for i := range int(count) {
		info, err := d.info(i)
		if err != nil {
			return nil, err
		}
		list = append(list, info)
	}
	return list, nil
}

// info describes device i.
func (d *Driver) info(i int) (Info, error) {
	var c C.pb_info
	if err := try(func(e *C.pb_error) { C.pb_device_info(d.api, C.int(i), &c, e) }); err != nil {
		return Info{}, fmt.Errorf("cuda:%d: %w", i, err)
	}
	return Info{
		Index: i, Name: C.GoString(&c.name[0]), Major: int(c.major), Minor: int(c.minor),
		Multiprocessors: int(c.multiprocessors), SharedBytes: int(c.shared_optin), Memory: int64(c.memory),
	}, nil
}
