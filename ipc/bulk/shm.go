package bulk

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Mapped replaces the references of kind shm in a message with the memory that they refer to; each must call its
// argument with every reference. Mapped takes over the descriptors, each of which must be referred to at least once.
// The data is valid until the hold is released, which is nil if there are no descriptors.
func Mapped(fds []int, each func(func(*wire.Ref) ([]byte, error)) error) (*Hold, error) {
	regions := make([]*Region, len(fds))
	used := make([]bool, len(fds))
	var first error
	for i, fd := range fds {
		var err error
		if regions[i], err = openRegion(fd); err != nil {
			first = errors.Join(first, fmt.Errorf("descriptor %d of the frame: %w", i, err))
		}
	}
	regions = slices.DeleteFunc(regions, func(r *Region) bool { return r == nil })
	h := Holding(regions...)
	if first == nil {
		first = each(func(r *wire.Ref) ([]byte, error) {
			if r.Kind != wire.RefShm {
				return nil, nil
			}
			if r.FD >= len(regions) {
				return nil, fmt.Errorf("reference to descriptor %d: the frame brought %d", r.FD, len(regions))
			}
			used[r.FD] = true
			all := regions[r.FD].Bytes()
			if r.Offset > len(all) || r.Bytes > len(all)-r.Offset {
				return nil, fmt.Errorf("reference to %d bytes at %d: descriptor %d has %d", r.Bytes, r.Offset, r.FD, len(all))
			}
			return all[r.Offset : r.Offset+r.Bytes : r.Offset+r.Bytes], nil
		})
	}
	if at := slices.Index(used, false); first == nil && at >= 0 {
		first = fmt.Errorf("the frame brought %d descriptors, and nothing refers to number %d", len(fds), at)
	}
	if first != nil {
		h.Release()
		return nil, first
	}
	if len(regions) == 0 {
		return nil, nil
	}
	return h, nil
}

// MappedReply is Mapped for a reply.
func MappedReply(o *pyjson.Object, fds []int) (*Hold, error) {
	return Mapped(fds, func(f func(*wire.Ref) ([]byte, error)) error {
		_, err := wire.ReplaceRefs(o, f)
		return err
	})
}

// Cargo collects what goes beside one message.
type Cargo interface {
	// Put takes bytes and returns a reference to them; nil: they go inside the message.
	Put(data []byte) (*wire.Ref, error)
	// FDs returns the descriptors to send.
	FDs() []int
	// Done is called once the message was sent, or was not.
	Done(sent bool)
}

// ShmCargo collects the shared memory that goes with one frame: regions in which the message already lies go as they
// are, the rest is copied into one region of its own.
type ShmCargo struct {
	known  []*Region
	list   []int // descriptors, indexed by Ref.FD
	copyFD int   // descriptor of the region of copies; -1: none yet
	size   int
}

// NewShmCargo returns a ShmCargo for one frame; what lies in h goes without a copy.
func NewShmCargo(h *Hold) *ShmCargo {
	c := &ShmCargo{copyFD: -1}
	if h != nil {
		c.known = h.regions
	}
	return c
}

func (c *ShmCargo) Put(data []byte) (*wire.Ref, error) {
	for _, r := range c.known {
		if at, ok := r.find(data); ok {
			i := slices.Index(c.list, r.fd)
			if i < 0 {
				if len(c.list) == wire.MaxFDs-1 {
					return nil, nil
				}
				i, c.list = len(c.list), append(c.list, r.fd)
			}
			return &wire.Ref{Kind: wire.RefShm, Bytes: len(data), FD: i, Offset: at}, nil
		}
	}
	if c.size+len(data) > wire.MaxRegion {
		return nil, nil
	}
	if c.copyFD < 0 {
		fd, err := memfd()
		if err != nil {
			return nil, nil // it goes inside the message
		}
		c.copyFD, c.list = fd, append(c.list, fd)
	}
	at := c.size
	if err := write(c.copyFD, data, at); err != nil {
		return nil, err
	}
	c.size = (at + len(data) + 63) &^ 63
	return &wire.Ref{Kind: wire.RefShm, Bytes: len(data), FD: slices.Index(c.list, c.copyFD), Offset: at}, nil
}

// FDs implements Cargo: nothing can be put in after it.
func (c *ShmCargo) FDs() []int {
	if c.copyFD >= 0 {
		_, _ = unix.FcntlInt(uintptr(c.copyFD), unix.F_ADD_SEALS,
			unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	}
	return c.list
}

func (c *ShmCargo) Done(bool) {
	if c.copyFD >= 0 {
		_ = unix.Close(c.copyFD)
	}
}
