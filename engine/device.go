package engine

import (
	"errors"
	"time"
)

// What errors of a device are (errors.Is). After ErrDeviceLost nothing runs there any more: the process has to be
// started again. After ErrOutOfMemory a call may be tried again when memory was freed. All others are mistakes of the
// program.
var (
	ErrDevice      = errors.New("the device refused a call")
	ErrDeviceLost  = errors.New("the device is lost to this process")
	ErrOutOfMemory = errors.New("the device has not enough memory")
)

// Located is implemented by Ops that work on a device with memory of its own; all others work in the memory of this
// process.
type Located interface {
	// Location names the device, e.g. "cuda:1". Ops of one location share its memory.
	Location() string
	// DeviceMemory returns the bytes of the device that nobody uses now, and all it has.
	DeviceMemory() (free, total int64, err error)
}

// Reserver is implemented by Ops that need scratch memory or plans by shape. Reserve takes them before a step for all
// calls that a recording pass has seen, so that nothing is allocated inside the step.
type Reserver interface {
	// Scratch returns how many bytes of the device Reserve leaves taken at most, with what was taken before.
	Scratch(calls *Recorder) int64
	Reserve(calls *Recorder) error
	// Workspace returns how many bytes of Scratch any product may take, whatever its shape; blocks: with weights in blocks
	// too.
	Workspace(blocks bool) int64
}

// Chooser is implemented by Ops that have several ways to compute a call.
type Chooser interface {
	// Chosen counts what each way has computed so far, by a name for people.
	Chosen() map[string]int64
}

// Fixer is implemented by Ops that choose how to compute a call by its shape.
type Fixer interface {
	// Fix has every row of a product sum in the same order from the next call on, however many rows the call has: one way
	// for each pair of types, and none of a library, whose sums we do not know. Off is the default.
	Fix(on bool)
}

// Replayer is implemented by Ops that can issue a sequence of calls again as one.
type Replayer interface {
	// Replay issues the calls of f. As long as Drop is not called, f issues the same calls on the same operands for equal
	// keys, but for what moves: f gets copies of those tensors at places that stay. f neither uploads, downloads,
	// allocates, frees nor waits; marks in it may be left out. Sooner or later f is not called any more but what it issued
	// is issued again: replayed is true. An error of f is returned; of a sequence that has one a part may be issued.
	Replay(key string, moving []Tensor, f func(fixed []Tensor) error) (replayed bool, err error)
	// Between makes a call that is ordered with those of the Ops and is none of them, such as an exchange with another
	// rank. In the f of a Replay it may be made later, and is made again, in its place, whenever f is issued again.
	Between(call func())
	// Drop forgets all keys: their operands may go.
	Drop()
}

// Marker is implemented by Ops whose calls run later than they are issued: it tells how far the device has come.
type Marker interface {
	// Mark issues a call that makes Marked return n.
	Mark(n int64)
	// Marked returns the last mark that has run. It is safe from any goroutine.
	Marked() int64
}

// Stamper is implemented by Ops whose calls run later than they are issued: it tells when.
type Stamper interface {
	// Stamp issues a call that notes the time. The function it returns gives that time, counted from any fixed moment of
	// the Ops; it is called after Sync.
	Stamp() func() time.Duration
}
