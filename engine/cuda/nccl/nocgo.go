//go:build !cgo

// Package nccl exchanges between streams by NCCL; without cgo it cannot open it.
package nccl

import (
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/library"
)

// Library is never opened without cgo.
type Library struct{ driver.Found }

// Clique is never made without cgo.
type Clique struct{}

// Open fails.
func Open(*driver.Driver, *library.Search) (*Library, error) { return nil, driver.ErrNotOpened }

// IDLength is the bytes of the name of a group of communicators.
const IDLength = 128

// NewID fails.
func (*Library) NewID() ([]byte, error) { return nil, driver.ErrNotOpened }

// Connect fails.
func (*Library) Connect([][]byte, ...[]*driver.Stream) ([]*Clique, error) {
	return nil, driver.ErrNotOpened
}

// Pending fails.
func (*Clique) Pending(int) (bool, error) { return false, driver.ErrNotOpened }

// Exchange fails.
func (*Clique) Exchange(int, *driver.Stream, []engine.Tensor, []engine.Tensor) (bool, error) {
	return false, driver.ErrNotOpened
}

// AllGather fails.
func (*Clique) AllGather(int, *driver.Stream, engine.Tensor, engine.Tensor) (bool, error) {
	return false, driver.ErrNotOpened
}

// ReduceScatter fails.
func (*Clique) ReduceScatter(int, *driver.Stream, engine.Tensor, engine.Tensor) (bool, error) {
	return false, driver.ErrNotOpened
}

// AllReduce fails.
func (*Clique) AllReduce(int, *driver.Stream, engine.Tensor) (bool, error) {
	return false, driver.ErrNotOpened
}

// Abort does nothing.
func (*Clique) Abort() {}

// Close does nothing.
func (*Clique) Close(time.Duration) error { return nil }
