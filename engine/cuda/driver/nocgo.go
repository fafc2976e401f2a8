//go:build !cgo

// Package driver opens NVIDIA's driver; without cgo it cannot, and none of its types is ever made.
package driver

import (
	"errors"

	"patchbay/engine"
)

// ErrNotOpened is wrapped by errors that say that the driver library is missing or too old.
var ErrNotOpened = errors.New("this program was built without cgo and cannot open a CUDA driver " +
	"(set CGO_ENABLED=1 and have a C compiler)")

// Driver is the opened driver library.
type Driver struct{ driver }

type driver interface {
	Path() string
	Version() int
	Devices() ([]Info, error)
}

// Point is a place in a stream.
type Point struct{}

// Stream is one stream of a device.
type Stream struct{ Calls }

// Calls are the methods of a Stream.
type Calls interface {
	Alloc(bytes int) (engine.Buf, error)
	Free(engine.Buf)
	Sync() error
	Location() string
	Write(dst engine.Tensor, src []byte)
	Read(dst []byte, src engine.Tensor) engine.Pending
	Record() Point
	After(Point)
	Forget(Point)
	Inbox(bytes int) (engine.Buf, error)
	Break(error)
	Err() error
	Take(dst, src engine.Tensor, from *Stream)
}
