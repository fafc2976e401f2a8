//go:build !cgo

// Package driver opens NVIDIA's driver; without cgo it cannot.
package driver

import (
	"errors"

	"patchbay/engine"
)

// ErrNotOpened is in the chain of an error that says that the driver's library is missing or too old.
var ErrNotOpened = errors.New("this program was built without cgo and cannot open a CUDA driver " +
	"(set CGO_ENABLED=1 and have a C compiler)")

// Driver has no implementation in a program built without cgo.
type Driver struct{}

// Path returns "".
func (*Driver) Path() string { return "" }

// Version returns 0.
func (*Driver) Version() int { return 0 }

// Devices fails.
func (*Driver) Devices() ([]Info, error) { return nil, ErrNotOpened }

// Stream is never made without cgo.
type Stream struct{}

// Alloc fails.
func (*Stream) Alloc(int) (engine.Buf, error) { return engine.Buf{}, ErrNotOpened }

// Free does nothing.
func (*Stream) Free(engine.Buf) {}

// Sync says what Open says.
func (*Stream) Sync() error { return ErrNotOpened }

// Location returns "".
func (*Stream) Location() string { return "" }

// Write does nothing.
func (*Stream) Write(engine.Tensor, []byte) {}

// Read fails.
func (*Stream) Read([]byte, engine.Tensor) engine.Pending {
	return engine.NewPending(func() error { return ErrNotOpened })
}

// Point is never made without cgo.
type Point struct{}

// Record returns nothing.
func (*Stream) Record() Point { return Point{} }

// After does nothing.
func (*Stream) After(Point) {}

// Forget does nothing.
func (*Stream) Forget(Point) {}

// Inbox fails.
func (*Stream) Inbox(int) (engine.Buf, error) { return engine.Buf{}, ErrNotOpened }

// Break does nothing.
func (*Stream) Break(error) {}

// Err says what Open says.
func (*Stream) Err() error { return ErrNotOpened }

// Take does nothing.
func (*Stream) Take(_, _ engine.Tensor, _ *Stream) {}
