//go:build !cgo

// Package nccl exchanges data between streams by NCCL; without cgo it cannot open it, and none of its types is ever
// made.
package nccl

import (
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/library"
)

// Open fails.
func Open(*driver.Driver, *library.Search) (*Library, error) { return nil, driver.ErrNotOpened }

// Library is the opened library.
type Library struct {
	driver.Found
	connecter
}

type connecter interface {
	NewID() ([]byte, error)
	Connect(ids [][]byte, limits []int, groups ...[]*driver.Stream) ([]*Clique, error)
}

// IDLength is the number of bytes of the ID of a group of communicators.
const IDLength = 128

// Clique holds the communicators of a group.
type Clique struct{ exchanger }

type exchanger interface {
	Pending(rank int) (bool, error)
	Exchange(rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error)
	AllGather(rank int, on *driver.Stream, dst, src engine.Tensor) (bool, error)
	ReduceScatter(rank int, on *driver.Stream, dst, src engine.Tensor) (bool, error)
	AllReduce(rank int, on *driver.Stream, buf engine.Tensor) (bool, error)
	Abort()
	Close(patience time.Duration) error
}
