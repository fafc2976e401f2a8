//go:build cgo

// Package cuda implements engine.Ops on NVIDIA GPUs of compute capability 8.0 or newer. It has the kernels, chooses
// one, or a library, for every call and launches it. Devices, memory and streams are those of package driver; package
// lt calls cuBLASLt and package dnn calls cuDNN. Package nccl, which this package does not use, exchanges data by NCCL.
//
// The kernels are PTX compiled beforehand from kernels/*.cu, which the driver compiles for the device at hand. The Go
// files check operands, fill the argument structs of kernels/args.h, choose a kernel and a grid and launch. Nothing
// here waits for the device except as package driver says, and when a library first computes a shape, because its
// result is compared with that of our kernel. Kernels compute in f32 whatever the type of the activations and round
// once when they store.
package cuda

import (
	"errors"
	"fmt"
	"strings"

	"patchbay/engine/cuda/dnn"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/library"
	"patchbay/engine/cuda/lt"
)

// Driver is the opened driver, with the libraries that its devices use. It stays open for the life of the process.
type Driver struct {
	*driver.Driver
	lt  *lt.Library  // nil: no cuBLASLt
	dnn *dnn.Library // nil: no cuDNN
}

// Open opens the driver library from one of the directories or, if none of them has it, where the loader finds it (see
// driver.Open).
func Open(dirs ...string) (*Driver, error) {
	d, err := driver.Open(dirs...)
	if err != nil {
		return nil, err
	}
	return &Driver{Driver: d}, nil
}

// Use makes devices that are opened from now on use cuBLASLt for products and cuDNN for attention, if s finds them, and
// returns what it found. A cuDNN that does not work is not used, but is no error.
func (d *Driver) Use(s *library.Search) (products, attention driver.Found, err error) {
	d.lt, products, err = lt.Open(d.Driver, s)
	d.dnn, attention = dnn.Open(d.Driver, s)
	return products, attention, err
}

// Library opens the first usable version of a library that s finds and returns what it found.
func (d *Driver) Library(s *library.Search, l *library.Library) (found driver.Found) {
	if l.Name == library.CUDNN().Name { // it consists of several libraries
		_, found = dnn.Open(d.Driver, s)
	} else {
		_, found = d.Load(s, l)
	}
	return found
}

// Requirements of the kernels.
const (
	leastVersion = 12040    // CUDA version of the driver: from 12.4 on it accepts their PTX
	leastMajor   = 8        // compute capability: they use asynchronous copies and bf16 tensor cores
	sharedLimit  = 99 << 10 // bytes of shared memory: what a block has on compute capability 8.6, 8.9 and 12.0
)

// Refusal returns an error that says why a device cannot be used (the driver or the GPU is too old), nil if it can.
func (d *Driver) Refusal(info *driver.Info) error {
	switch {
	case d.Version() < leastVersion:
		return fmt.Errorf("%s: the driver serves CUDA %d.%d; the kernels need %d.%d, driver 550 or newer",
			info.Location(), d.Version()/1000, d.Version()%1000/10, leastVersion/1000, leastVersion%1000/10)
	case info.Major < leastMajor:
		return fmt.Errorf("%s: %s has compute capability %d.%d; %d.0 is the least that works", info.Location(), info.Name,
			info.Major, info.Minor, leastMajor)
	case info.SharedBytes < sharedLimit:
		return fmt.Errorf("%s: %s gives a block %d bytes of shared memory; the kernels need %d", info.Location(), info.Name,
			info.SharedBytes, sharedLimit)
	}
	return nil
}

// Device is one GPU with its loaded kernels. Several Ops share it; its methods may be called from several goroutines.
type Device struct {
	*driver.Device
	Eager     bool // streams made from now on issue every call themselves (see engine.Replayer)
	functions [kernelCount]driver.Function
	lt        *lt.Device   // nil: no cuBLASLt
	dnn       *dnn.Library // nil: no cuDNN
}

// Device opens device number index and loads the kernels into it. It returns an error for GPUs that are too old.
func (d *Driver) Device(index int) (*Device, error) {
	info, err := d.Info(index)
	if err != nil {
		return nil, err
	}
	if err := d.Refusal(&info); err != nil {
		return nil, err
	}
	opened, err := d.Driver.Device(info)
	if err != nil {
		return nil, fmt.Errorf("cuda:%d: %w", index, err)
	}
	dev := &Device{Device: opened, dnn: d.dnn}
	err = dev.load()
	if err == nil && d.lt != nil {
		dev.lt, err = d.lt.On(opened)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cuda:%d: %w", index, err), dev.Close())
	}
	return dev, nil
}

// load loads the PTX and looks up every kernel.
func (dev *Device) load() error {
	all, err := modules()
	if err != nil {
		return err
	}
	for _, m := range all {
		loaded, err := dev.Load(m.ptx)
		if err != nil {
			return fmt.Errorf("load %s: %w", m.source, err)
		}
		for k := range kernelCount {
			if !strings.Contains(m.ptx, ".entry "+kernels[k].name+"(") {
				continue
			}
			if dev.functions[k], err = dev.Function(loaded, kernels[k].name, kernels[k].shared); err != nil {
				return fmt.Errorf("load %s: %s: %w", m.source, kernels[k].name, err)
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

// Close releases the kernels and the context. Everything allocated on the device must have been freed.
func (dev *Device) Close() error {
	if dev.lt == nil {
		return dev.Device.Close()
	}
	return errors.Join(dev.lt.Close(), dev.Device.Close())
}
