//go:build cgo

// Package driver wraps NVIDIA's driver library, libcuda: devices, their memory, streams and what is ordered on them
// (copies, kernels, events, graphs, exchanges with other devices). To it tensors are places in memory; it knows no
// operation and no kernel, and none of the libraries that work on top of the driver.
//
// Nothing of CUDA is needed to build it: the library is loaded at run time (driver.h declares what is used of it,
// shim.h what Go calls). A Driver is the opened library, a Device one GPU, a Stream one stream on it. These wait for
// the device: Sync, Drain, Alloc of a Stream, the Wait of a Download, uploads while both of their buffers are in use,
// and calls that free memory. Addresses of the device are numbers in Go, never pointers.
package driver

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
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
}

// Open opens the driver library from one of the directories or, if none of them has it, where the loader finds it. If
// it cannot be opened anywhere, the error wraps ErrNotOpened and is that of the last attempt; without a GPU it wraps an
// *Error.
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
				return nil, fmt.Errorf("%s: %w", path, last) // it exists but refuses: no other one will do better
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

// Version returns the newest CUDA version that the driver supports, as 1000 * major + 10 * minor.
func (d *Driver) Version() int { return d.version }

// Devices describes every device, in the driver's order.
func (d *Driver) Devices() ([]Info, error) {
	var count C.int
	if err := try(func(e *C.pb_error) { C.pb_device_count(d.api, &count, e) }); err != nil {
		return nil, err
	}
	list := make([]Info, 0, int(count))
	for i := range int(count) {
		info, err := d.Info(i)
		if err != nil {
			return nil, err
		}
		list = append(list, info)
	}
	return list, nil
}

// Info describes device i.
func (d *Driver) Info(i int) (Info, error) {
	var c C.pb_info
	if err := try(func(e *C.pb_error) { C.pb_device_info(d.api, C.int(i), &c, e) }); err != nil {
		return Info{}, fmt.Errorf("cuda:%d: %w", i, err)
	}
	return Info{
		Index: i, Name: C.GoString(&c.name[0]), Major: int(c.major), Minor: int(c.minor),
		Multiprocessors: int(c.multiprocessors), SharedBytes: int(c.shared_optin), Memory: int64(c.memory),
	}, nil
}
