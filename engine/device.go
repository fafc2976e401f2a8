package engine

import (
	"errors"
	"time"
)

// The kinds of device errors, for errors.Is. After ErrDeviceLost nothing runs on the device any more and the process
// must be restarted. After ErrOutOfMemory a call may be retried once memory has been freed. Any other device error is a
// bug in this program.
var (
	ErrDevice      = errors.New("the device refused a call")
	ErrDeviceLost  = errors.New("the device is lost to this process")
	ErrOutOfMemory = errors.New("the device has not enough memory")
)

// Located is implemented by Ops whose device has its own memory. All other Ops work in the memory of this process.
type Located interface {
	// Location names the device, e.g. "cuda:1". Ops with the same location share its memory.
	Location() string
	// DeviceMemory returns the free and the total memory of the device in bytes.
	DeviceMemory() (free, total int64, err error)
}

// Reserver is implemented by Ops that need scratch memory or per-shape plans. Reserve takes them before a step for all
// calls that a recording pass has seen, so that nothing is allocated within the step.
type Reserver interface {
	// Scratch returns an upper bound in bytes of the device scratch memory held after Reserve, including what is held
	// already.
	Scratch(calls *Recorder) int64
	Reserve(calls *Recorder) error
	// Workspace returns how many bytes of Scratch a product of any shape may take; with blocks set, this includes
	// products with block-quantized weights.
	Workspace(blocks bool) int64
}

// Chooser is implemented by Ops that have several ways to compute a call.
type Chooser interface {
	// Chosen returns counters of the choices made so far, keyed by human-readable descriptions.
	Chosen() map[string]int64
}

// Fixer is implemented by Ops that choose how to compute a call by its shape.
type Fixer interface {
	// Fix makes all further products sum every row in the same order, regardless of the number of rows: one kernel for
	// each pair of types and no library calls, whose summation order is unknown. The default is off.
	Fix(on bool)
}

// Replayer is implemented by Ops that can issue a sequence of calls again as one.
type Replayer interface {
	// Replay issues the calls of f and may record them. Until Drop, f must issue the same calls on the same operands
	// whenever key is the same. Tensors whose addresses change are passed as moving; f receives copies of them at fixed
	// addresses. f must not upload, download, allocate, free or wait, and its marks may be skipped. Once a sequence is
	// recorded, Replay issues it again instead of calling f, and replayed is true. An error of f is returned; part of
	// the sequence may have been issued by then.
	Replay(key string, moving []Tensor, f func(fixed []Tensor) error) (replayed bool, err error)
	// Between runs call in order with the calls of the Ops without being one of them, such as an exchange with another
	// rank. In the f of a Replay it may run later, and it runs again at the same position on every replay.
	Between(call func())
	// Drop forgets all keys, so that their operands may be freed or moved.
	Drop()
}

// Fetcher is implemented by Ops that run calls asynchronously and bring weights from host memory meanwhile.
type Fetcher interface {
	// Fetch returns a function that fills dst, u8 [n], with what read writes, once the calls issued so far have run. read
	// gets pieces of the bytes in order, with the place of each. The function is called once, possibly from another
	// goroutine and beside other calls of the Ops, but not beside that of another Fetch. Once it has returned without an
	// error, Fetched makes calls that are issued from then on wait until dst is filled.
	Fetch(dst Tensor, read func(piece []byte, at int) error) func() error
	Fetched()
}

// Marker is implemented by Ops that run calls asynchronously: it tells how far the device has got.
type Marker interface {
	// Mark enqueues a call after which Marked returns n.
	Mark(n int64)
	// Marked returns the last mark that has run. It is safe for concurrent use.
	Marked() int64
}

// Stamper is implemented by Ops that run calls asynchronously: it tells when they run.
type Stamper interface {
	// Stamp enqueues a timestamp. The function it returns must be called after Sync and gives that time, relative to an
	// arbitrary but fixed origin of the Ops.
	Stamp() func() time.Duration
}
