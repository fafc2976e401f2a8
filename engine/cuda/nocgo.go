//go:build !cgo

// Package cuda computes on NVIDIA GPUs through the driver library; without cgo it cannot open it, and none of its
// types is ever made.
package cuda

import (
	"fmt"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/library"
)

// Open fails.
func Open(...string) (*Driver, error) { return nil, ErrNotOpened }

// Driver is the opened driver.
type Driver struct {
	*driver.Driver
	devices
}

type devices interface {
	Use(*library.Search) (products, attention driver.Found, err error)
	Library(*library.Search, *library.Library) driver.Found
	Refusal(*Info) error
	Device(index int) (*Device, error)
}

// Device is one GPU.
type Device struct {
	Info
	Eager bool
	streams
}

type streams interface {
	Loaded() *Loaded
	NewOps() (*Ops, error)
	Close() error
}

// Loaded says how the kernels came to a device.
type Loaded struct {
	fmt.Stringer
	Refused error
}

// Ops computes on a stream of a device.
type Ops struct {
	Stream *driver.Stream
	operations
}

type operations interface {
	driver.Calls
	engine.Ops
	engine.Fixer
	Close() error
	Join(peers []*Ops) error
	Beside() (*Ops, error)
	Sum(dst engine.Tensor, parts []engine.Tensor, of []*Ops)
}
