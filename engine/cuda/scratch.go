//go:build cgo

package cuda

import "patchbay/engine/cuda/driver"

// scratch is device memory for use within one call. It grows, waiting for the device, when a call needs more than any
// before. A call takes it piece by piece and the next call starts over, which is safe because a stream runs them in
// order.
type scratch struct {
	dev   *driver.Device
	at    uint64
	bytes int
	used  int
	// frozen forbids growth, because the address is being captured in a graph
	frozen bool
	// flush enqueues what still reads the memory, before it is freed; nil: nothing is held back
	flush func()
}

// scratchAlign is the alignment of pieces in bytes.
const scratchAlign = 256

// need starts a call that will take at most the given bytes (see room).
func (s *scratch) need(bytes int) error {
	s.used = 0
	if bytes <= s.bytes {
		return nil
	}
	if s.frozen {
		return errCaptureNeedsMemory
	}
	if err := s.free(); err != nil {
		return err
	}
	at, err := s.dev.Alloc(bytes)
	if err != nil {
		return err
	}
	s.at, s.bytes = at, bytes
	return nil
}

// room returns the scratch bytes that a piece of the given size takes.
func room(bytes int) int { return (bytes + scratchAlign - 1) / scratchAlign * scratchAlign }

// take returns the next piece.
func (s *scratch) take(bytes int) uint64 {
	at := s.at + uint64(s.used)
	s.used += room(bytes)
	if s.used > s.bytes {
		panic("cuda: a call takes more scratch memory than it asked for")
	}
	return at
}

// free releases the memory.
func (s *scratch) free() error {
	if s.at == 0 {
		return nil
	}
	if s.flush != nil {
		s.flush()
	}
	at := s.at
	s.at, s.bytes = 0, 0
	return s.dev.Free(at)
}
