package bulk

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Region is memory that two processes share: an anonymous file (memfd_create(2)), mapped, which travels over a unix
// socket as a descriptor. It is sealed against shrinking (F_SEAL_SHRINK): if its creator truncated the file, reading
// the mapping would kill the reader with SIGBUS. Its owner must release it.
type Region struct {
	fd       int
	data     []byte
	released atomic.Bool

	after func() // called once when it is released; may be nil
}

// NewRegion creates a region of n bytes, zeroed and writable by this process. A host that fills it and sends a
// wire.Tensor whose Data lies in Bytes, in a message whose Held refers to the region, sends no copy.
func NewRegion(n int) (*Region, error) {
	if n <= 0 || n > wire.MaxRegion {
		return nil, fmt.Errorf("shared memory of %d bytes: want 1 to %d", n, wire.MaxRegion)
	}
	fd, err := memfd()
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(n)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	var data []byte
	if err == nil {
		data, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shared memory of %d bytes: %w", n, err), unix.Close(fd))
	}
	return &Region{fd: fd, data: data}, nil
}

// memfd creates an anonymous file that can be sealed.
func memfd() (int, error) {
	return unix.MemfdCreate("patchbay", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
}

// openRegion maps a descriptor from the other side for reading. It takes over the descriptor and closes it on error.
func openRegion(fd int) (*Region, error) {
	data, err := mapSealed(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &Region{fd: fd, data: data}, nil
}

func mapSealed(fd int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("a descriptor that is no memfd")
	case seals&unix.F_SEAL_SHRINK == 0:
		return nil, fmt.Errorf("a memfd without F_SEAL_SHRINK")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	if st.Size <= 0 || st.Size > wire.MaxRegion {
		return nil, fmt.Errorf("a memfd of %d bytes: want 1 to %d", st.Size, wire.MaxRegion)
	}
	data, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return data, nil
}

// Bytes returns the memory. It must not be accessed after Release.
func (r *Region) Bytes() []byte { return r.data }

// write copies data into shared memory at an offset. It writes through the file, so that the kernel need not zero
// pages that are overwritten completely.
func write(fd int, data []byte, at int) error {
	for len(data) > 0 {
		n, err := unix.Pwrite(fd, data, int64(at))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("shared memory: %w", err)
		}
		data, at = data[max(n, 0):], at+max(n, 0)
	}
	return nil
}

// Release unmaps the region. A second call does nothing.
func (r *Region) Release() {
	if r.released.Swap(true) {
		return
	}
	_ = unix.Munmap(r.data)
	_ = unix.Close(r.fd)
	r.data, r.fd = nil, -1
	if r.after != nil {
		r.after()
	}
}

func (r *Region) find(b []byte) (offset int, ok bool) {
	if len(b) == 0 || len(r.data) == 0 {
		return 0, false
	}
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(r.data)))
	if at < from || at-from > uintptr(len(r.data)) || len(b) > len(r.data)-int(at-from) {
		return 0, false
	}
	return int(at - from), true
}

// Hold keeps the shared memory in which the tensors and bytes of one message lie, and counts its users. A nil Hold
// holds nothing. All methods but Join are safe for concurrent use.
type Hold struct {
	regions []*Region
	users   atomic.Int32
}

// Holding returns a Hold on regions with one user.
func Holding(regions ...*Region) *Hold {
	h := &Hold{regions: regions}
	h.users.Store(1)
	return h
}

// Retain adds a user.
func (h *Hold) Retain() *Hold {
	if h != nil {
		h.users.Add(1)
	}
	return h
}

// Release removes a user; the last one frees the memory.
func (h *Hold) Release() {
	if h == nil || h.users.Add(-1) > 0 {
		return
	}
	for _, r := range h.regions {
		r.Release()
	}
}

// Has reports whether b lies in the memory.
func (h *Hold) Has(b []byte) bool {
	if h == nil {
		return false
	}
	for _, r := range h.regions {
		if _, ok := r.find(b); ok {
			return true
		}
	}
	return false
}

// Join adds the regions of other to h, which may be nil, and takes over the release of other: use only the result.
func (h *Hold) Join(other *Hold) *Hold {
	if h == nil {
		return other
	}
	if other != nil {
		h.regions = append(h.regions, other.regions...)
	}
	return h
}

// Held is embedded in messages that know the shared memory in which their tensors and bytes lie.
type Held struct {
	Hold *Hold `json:"-"` // nil: in none
}

func (h *Held) hold() *Hold { return h.Hold }

// HoldOf returns the Hold of a message; nil if it has none.
func HoldOf(v any) *Hold {
	if h, ok := v.(interface{ hold() *Hold }); ok {
		return h.hold()
	}
	return nil
}

// Disown replaces tensors and bytes in v that lie in h with copies. It changes v in place and returns it; if v itself
// is bytes, it returns the copy.
func Disown(v any, h *Hold) any {
	switch x := v.(type) {
	case []byte:
		if h.Has(x) {
			return bytes.Clone(x)
		}
	case *wire.Tensor:
		if x != nil && h.Has(x.Data) {
			x.Data = bytes.Clone(x.Data)
		}
	default:
		_, _ = pyjson.Replace(v, func(e any) (any, error) { return Disown(e, h), nil })
	}
	return v
}
