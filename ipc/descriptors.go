package ipc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"patchbay/node/pyjson"
)

// maxFDs bounds the descriptors of one frame.
const maxFDs = 16

// fdConn is a unix socket whose frames may bring descriptors. They come with the first byte of their frame (SCM_RIGHTS, unix(7)), so that whoever reads a
// frame exactly has its own and no others.
type fdConn struct {
	*net.UnixConn
	oob []byte
	got []int
	cut bool // more came than may
}

// fdConnOf returns f as a connection that takes descriptors; nil if f is no unix socket, as the pipes of a host. Of a file it is a copy.
func fdConnOf(f any) *fdConn {
	switch c := f.(type) {
	case *net.UnixConn:
		return &fdConn{UnixConn: c}
	case *os.File:
		if st, err := c.Stat(); err != nil || st.Mode().Type() != os.ModeSocket {
			return nil
		}
		nc, err := net.FileConn(c)
		if err != nil {
			return nil
		}
		if u, ok := nc.(*net.UnixConn); ok {
			return &fdConn{UnixConn: u}
		}
		_ = nc.Close()
	}
	return nil
}

// Read implements io.Reader and keeps the descriptors that come on the way.
func (c *fdConn) Read(b []byte) (int, error) {
	if c.oob == nil {
		c.oob = make([]byte, unix.CmsgSpace(4*maxFDs))
	}
	n, oobn, flags, _, err := c.ReadMsgUnix(b, c.oob)
	if oobn > 0 {
		c.keep(c.oob[:oobn])
	}
	if flags&unix.MSG_CTRUNC != 0 {
		c.cut = true
	}
	return n, err
}

func (c *fdConn) keep(oob []byte) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			continue
		}
		if room := maxFDs - len(c.got); len(fds) > room {
			closeFDs(fds[room:])
			fds, c.cut = fds[:room], true
		}
		c.got = append(c.got, fds...)
	}
}

// take returns the descriptors of the frame that was read, which are the caller's now.
func (c *fdConn) take() ([]int, error) {
	fds, cut := c.got, c.cut
	c.got, c.cut = nil, false
	if cut {
		closeFDs(fds)
		return nil, fmt.Errorf("a frame brought more than %d descriptors", maxFDs)
	}
	return fds, nil
}

// takeFDs returns the descriptors that came with the frame just read from r.
func takeFDs(r io.Reader) ([]int, error) {
	if c, ok := r.(*fdConn); ok {
		return c.take()
	}
	return nil, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// mapped replaces the references of kind shm in a message by the memory that they mean. It takes the descriptors; every one must be meant by one of them at
// least. The data is valid until the hold is released.
func mapped(fds []int, each func(func(*Ref) ([]byte, error)) error) (*hold, error) {
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
	h := holding(regions...)
	if first == nil {
		first = each(func(r *Ref) ([]byte, error) {
			if r.Kind != RefShm {
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
		h.release()
		return nil, first
	}
	if len(regions) == 0 {
		return nil, nil
	}
	return h, nil
}

// mappedReply is mapped for a reply.
func mappedReply(o *pyjson.Object, fds []int) (*hold, error) {
	return mapped(fds, func(f func(*Ref) ([]byte, error)) error {
		_, err := replaced(o, f)
		return err
	})
}

// cargo takes what goes beside one message.
type cargo interface {
	// put takes bytes; nil: they go inside.
	put(data []byte) (*Ref, error)
	// fds are the descriptors to send.
	fds() []int
	// done is called when the message was sent, or was not.
	done(sent bool)
}

// shmCargo gathers the shared memory that goes with one frame: memory that the message lies in goes as it is, the rest is copied into one region.
type shmCargo struct {
	known []*Region
	list  []int // in the order of Ref.FD
	own   int   // -1: none yet
	size  int
}

func newShmCargo(h *hold, more ...*Region) *shmCargo {
	c := &shmCargo{own: -1, known: more}
	if h != nil {
		c.known = append(c.known, h.regions...)
	}
	return c
}

func (c *shmCargo) put(data []byte) (*Ref, error) {
	for _, r := range c.known {
		if at, ok := r.find(data); ok {
			i := slices.Index(c.list, r.fd)
			if i < 0 {
				if len(c.list) == maxFDs-1 {
					return nil, nil
				}
				i, c.list = len(c.list), append(c.list, r.fd)
			}
			return &Ref{Kind: RefShm, Bytes: len(data), FD: i, Offset: at}, nil
		}
	}
	if c.size+len(data) > maxRegion {
		return nil, nil
	}
	if c.own < 0 {
		fd, err := unix.MemfdCreate("patchbay", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return nil, nil // it goes inside the message
		}
		c.own, c.list = fd, append(c.list, fd)
	}
	at := c.size
	for left := data; len(left) > 0; {
		n, err := unix.Pwrite(c.own, left, int64(c.size))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("shared memory: %w", err)
		}
		left, c.size = left[max(n, 0):], c.size+max(n, 0)
	}
	c.size = (c.size + 63) &^ 63
	return &Ref{Kind: RefShm, Bytes: len(data), FD: slices.Index(c.list, c.own), Offset: at}, nil
}

func (c *shmCargo) fds() []int {
	if c.own >= 0 {
		_, _ = unix.FcntlInt(uintptr(c.own), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	}
	return c.list
}

func (c *shmCargo) done(bool) {
	if c.own >= 0 {
		_ = unix.Close(c.own)
	}
}
