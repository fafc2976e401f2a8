//go:build !cgo

// Package cuda computes on NVIDIA GPUs through the driver's library; without cgo it cannot open one.
package cuda

import (
	"errors"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda/library"
)

// ErrNotOpened is in the chain of an error that says that the driver's library is missing or too old.
var ErrNotOpened = errors.New("this program was built without cgo and cannot open a CUDA driver " +
	"(set CGO_ENABLED=1 and have a C compiler)")

// Driver has no implementation in a program built without cgo; Open never returns one.
type Driver struct{}

// Device is never made without cgo.
type Device struct {
	Info
	Eager bool
}

// Ops is never made without cgo.
type Ops struct{ engine.Ops }

// Open fails.
func Open(...string) (*Driver, error) { return nil, ErrNotOpened }

// Path returns "".
func (*Driver) Path() string { return "" }

// Version returns 0.
func (*Driver) Version() int { return 0 }

// Library finds none.
func (*Driver) Library(*library.Search, *library.Library) Found { return Found{Err: ErrNotOpened} }

// Use finds none.
func (*Driver) Use(*library.Search) (products, attention Found, err error) {
	return Found{}, Found{}, ErrNotOpened
}

// NCCL is never opened without cgo.
type NCCL struct{ Found }

// Clique is never made without cgo.
type Clique struct{}

// NCCL says what Open says.
func (*Driver) NCCL(*library.Search) (*NCCL, error) { return nil, ErrNotOpened }

// IDLength is the bytes of the name of a group of communicators.
const IDLength = 128

// NewID fails.
func (*NCCL) NewID() ([]byte, error) { return nil, ErrNotOpened }

// Connect fails.
func (*NCCL) Connect([][]byte, ...[]*Ops) ([]*Clique, error) { return nil, ErrNotOpened }

// Pending fails.
func (*Clique) Pending(int) (bool, error) { return false, ErrNotOpened }

// Exchange fails.
func (*Clique) Exchange(int, *Ops, []engine.Tensor, []engine.Tensor) (bool, error) {
	return false, ErrNotOpened
}

// AllGather fails.
func (*Clique) AllGather(int, *Ops, engine.Tensor, engine.Tensor) (bool, error) {
	return false, ErrNotOpened
}

// ReduceScatter fails.
func (*Clique) ReduceScatter(int, *Ops, engine.Tensor, engine.Tensor) (bool, error) {
	return false, ErrNotOpened
}

// AllReduce fails.
func (*Clique) AllReduce(int, *Ops, engine.Tensor) (bool, error) { return false, ErrNotOpened }

// Abort does nothing.
func (*Clique) Abort() {}

// Close does nothing.
func (*Clique) Close(time.Duration) error { return nil }

// Devices fails.
func (*Driver) Devices() ([]Info, error) { return nil, ErrNotOpened }

// Device fails.
func (*Driver) Device(int) (*Device, error) { return nil, ErrNotOpened }

// Refusal says what Open says.
func (*Driver) Refusal(*Info) error { return ErrNotOpened }

// Fix does nothing.
func (*Ops) Fix(bool) {}

// NewOps fails.
func (*Device) NewOps() (*Ops, error) { return nil, ErrNotOpened }

// Close does nothing.
func (*Device) Close() error { return nil }

// Close does nothing.
func (*Ops) Close() error { return nil }

// Write does nothing.
func (*Ops) Write(engine.Tensor, []byte) {}

// Read fails.
func (*Ops) Read([]byte, engine.Tensor) engine.Pending {
	return engine.NewPending(func() error { return ErrNotOpened })
}

// Point is never made without cgo.
type Point struct{}

// Record returns nothing.
func (*Ops) Record() Point { return Point{} }

// After does nothing.
func (*Ops) After(Point) {}

// Forget does nothing.
func (*Ops) Forget(Point) {}

// Join fails.
func (*Ops) Join([]*Ops) error { return ErrNotOpened }

// Beside fails.
func (*Ops) Beside() (*Ops, error) { return nil, ErrNotOpened }

// Location returns "".
func (*Ops) Location() string { return "" }

// Inbox fails.
func (*Ops) Inbox(int) (engine.Buf, error) { return engine.Buf{}, ErrNotOpened }

// Break does nothing.
func (*Ops) Break(error) {}

// Err says what Open says.
func (*Ops) Err() error { return ErrNotOpened }

// Take does nothing.
func (*Ops) Take(_, _ engine.Tensor, _ *Ops) {}

// Sum does nothing.
func (*Ops) Sum(engine.Tensor, []engine.Tensor, []*Ops) {}

// Sync does nothing.
func (*Ops) Sync() error { return nil }
