//go:build cgo

package cuda

import "errors"

// scratch is device memory for the inside of one call. It grows when a call needs more than any before, which waits for
// the device; a call hands it out piece by piece and the next call starts over: the stream keeps them apart.
type scratch struct {
	dev   *Device
	at    uint64
	bytes int
	used  int
	// frozen: it may not grow, because its address is being captured
	frozen bool
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
		return errMoved
	}
	if err := s.free(); err != nil {
		return err
	}
	at, err := s.dev.alloc(bytes)
	if err != nil {
		return err
	}
	s.at, s.bytes = at, bytes
	return nil
}

// room returns what a piece of the given bytes takes of the scratch memory.
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

// free gives the memory back.
func (s *scratch) free() error {
	if s.at == 0 {
		return nil
	}
	at := s.at
	s.at, s.bytes = 0, 0
	return s.dev.free(at)
}

// ring is pinned memory that uploads pass through: two buffers, so that one is filled while the other is copied.
type ring struct {
	dev  *Device
	slot [2]*pinned
	next int
}

// ringBytes is the size of one buffer of a ring.
const ringBytes = 8 << 20

// take returns the buffer that was used longest ago, once its copy is done. Its user sends it before the next take.
func (r *ring) take() (*pinned, error) {
	if err := r.fill(); err != nil {
		return nil, err
	}
	r.next = 1 - r.next
	p := r.slot[r.next]
	return p, r.dev.wait(p)
}

// fill takes the buffers that are not there yet.
func (r *ring) fill() error {
	for i := range r.slot {
		if r.slot[i] == nil {
			p, err := r.dev.newPinned(ringBytes)
			if err != nil {
				return err
			}
			r.slot[i] = p
		}
	}
	return nil
}

// free gives the buffers back.
func (r *ring) free() error {
	var errs []error
	for i, p := range r.slot {
		if p != nil {
			errs = append(errs, r.dev.release(p))
			r.slot[i] = nil
		}
	}
	return errors.Join(errs...)
}
