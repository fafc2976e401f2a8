//go:build cgo

// Package cuda implements engine.Ops on NVIDIA GPUs of compute capability 8.0 or newer. It has the kernels, chooses
// one, or a library, for every call and launches it. Devices, memory and streams are those of package driver; package
// lt calls cuBLASLt and package dnn calls cuDNN. Package nccl, which this package does not use, exchanges data by NCCL.
//
// The kernels are compiled beforehand from kernels/*.cu (see package compiled). The Go files check operands, fill the
// argument structs of kernels/args.h, choose a kernel and a grid and launch. Nothing here waits for the device except
// as package driver says, and when a library first computes a shape, because its result is compared with that of our
// kernel. Kernels compute in f32 whatever the type of the activations and round once when they store.
package cuda

import (
	"errors"
	"fmt"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda/compiled"
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
	loaded    Loaded
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

// Loaded says how the kernels came to a device.
type Loaded struct {
	Code    string        // architecture of the code that was loaded, such as sm_86; empty: the driver got PTX
	Refused error         // why the driver did not take the code for the device; nil if it did, or if there is none
	Took    time.Duration // by loading; compiling PTX takes seconds, unless the driver has kept the result
	device  *Info
}

// String says it in words, for people.
func (l *Loaded) String() string {
	seconds := fmt.Sprintf("%.2f s", l.Took.Seconds())
	switch {
	case l.Code != "":
		return "code for " + l.Code + ", loaded in " + seconds
	case l.Refused != nil:
		return fmt.Sprintf("PTX, which the driver compiled in %s, as it refused their code: %v", seconds, l.Refused)
	}
	return fmt.Sprintf("PTX, which the driver compiled in %s: this program has no code for compute capability %d.%d",
		seconds, l.device.Major, l.device.Minor)
}

// Loaded returns how the kernels came to the device.
func (dev *Device) Loaded() *Loaded { return &dev.loaded }

// load loads the code for the device or, if there is none or the driver refuses it, the PTX.
func (dev *Device) load() error {
	began := time.Now()
	dev.loaded.device = &dev.Info
	arch, code, err := compiled.Code(dev.Major, dev.Minor)
	if err != nil {
		return err
	}
	var refused error
	if code != nil {
		err = dev.loadAll(code)
		var of *driver.Error
		if !errors.As(err, &of) || errors.Is(err, engine.ErrOutOfMemory) || errors.Is(err, engine.ErrDeviceLost) {
			dev.loaded.Code, dev.loaded.Took = arch, time.Since(began)
			return err
		}
		refused = fmt.Errorf("%s: %w", arch, err)
		if err := dev.Unload(); err != nil {
			return err
		}
	}
	ptx, err := compiled.PTX()
	if err == nil {
		err = dev.loadAll(ptx)
	}
	if err != nil {
		return errors.Join(err, refused)
	}
	dev.loaded.Refused, dev.loaded.Took = refused, time.Since(began)
	return nil
}

// loadAll loads modules and looks up every kernel in them.
func (dev *Device) loadAll(all []compiled.Module) error {
	in := map[string]driver.Module{}
	for _, m := range all {
		loaded, err := dev.Load(m.Image)
		if err != nil {
			return fmt.Errorf("load %s: %w", m.Name, err)
		}
		for _, k := range m.Kernels {
			in[k] = loaded
		}
	}
	for k, s := range kernels {
		m, ok := in[s.name]
		if !ok {
			return fmt.Errorf("no module has kernel %s", s.name)
		}
		var err error
		if dev.functions[k], err = dev.Function(m, s.name, s.shared); err != nil {
			return fmt.Errorf("load %s: %w", s.name, err)
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
