//go:build !cgo

// Package cuda computes on NVIDIA GPUs through the driver's library; without cgo it cannot open one.
package cuda

import (
	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/library"
)

// Driver has no implementation in a program built without cgo; Open never returns one.
type Driver struct{ *driver.Driver }

// Device is never made without cgo.
type Device struct {
	Info
	Eager bool
}

// Ops is never made without cgo.
type Ops struct {
	*driver.Stream
	others
}

// others are the methods that a stream has not.
type others struct{ engine.Ops }

// Open fails.
func Open(...string) (*Driver, error) { return nil, ErrNotOpened }

// Library finds none.
func (*Driver) Library(*library.Search, *library.Library) driver.Found {
	return driver.Found{Err: ErrNotOpened}
}

// Use finds none.
func (*Driver) Use(*library.Search) (products, attention driver.Found, err error) {
	return products, attention, ErrNotOpened
}

// Device fails.
func (*Driver) Device(int) (*Device, error) { return nil, ErrNotOpened }

// Refusal says what Open says.
func (*Driver) Refusal(*Info) error { return ErrNotOpened }

// NewOps fails.
func (*Device) NewOps() (*Ops, error) { return nil, ErrNotOpened }

// Close does nothing.
func (*Device) Close() error { return nil }

// Close does nothing.
func (*Ops) Close() error { return nil }

// Fix does nothing.
func (*Ops) Fix(bool) {}

// Join fails.
func (*Ops) Join([]*Ops) error { return ErrNotOpened }

// Beside fails.
func (*Ops) Beside() (*Ops, error) { return nil, ErrNotOpened }

// Sum does nothing.
func (*Ops) Sum(engine.Tensor, []engine.Tensor, []*Ops) {}
