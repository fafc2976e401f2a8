package wire

import (
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// MaxFDs bounds the file descriptors of one frame.
const MaxFDs = 16

// Conn is a unix socket whose frames may carry file descriptors. They come with the first byte of their frame
// (SCM_RIGHTS, unix(7)), so that a reader that reads exactly one frame gets its descriptors and no others.
type Conn struct {
	*net.UnixConn
	oob []byte
	got []int
	cut bool // more than MaxFDs came
}

// ConnOf returns f as a connection that takes descriptors, or nil if f is not a unix socket (hosts may use pipes). For
// an *os.File it is a duplicate, which is closed separately.
func ConnOf(f any) *Conn {
	switch c := f.(type) {
	case *net.UnixConn:
		return &Conn{UnixConn: c}
	case *os.File:
		if st, err := c.Stat(); err != nil || st.Mode().Type() != os.ModeSocket {
			return nil
		}
		nc, err := net.FileConn(c)
		if err != nil {
			return nil
		}
		if u, ok := nc.(*net.UnixConn); ok {
			return &Conn{UnixConn: u}
		}
		_ = nc.Close()
	}
	return nil
}

// Read implements io.Reader and keeps the descriptors that come with the bytes for TakeFDs.
func (c *Conn) Read(b []byte) (int, error) {
	if c.oob == nil {
		c.oob = make([]byte, unix.CmsgSpace(4*MaxFDs))
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

func (c *Conn) keep(oob []byte) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			continue
		}
		if room := MaxFDs - len(c.got); len(fds) > room {
			CloseFDs(fds[room:])
			fds, c.cut = fds[:room], true
		}
		c.got = append(c.got, fds...)
	}
}

// TakeFDs returns the descriptors that came with the frame just read from r; the caller must close them. If there were
// more than MaxFDs, it closes them and returns an error.
func TakeFDs(r io.Reader) ([]int, error) {
	c, ok := r.(*Conn)
	if !ok {
		return nil, nil
	}
	fds, cut := c.got, c.cut
	c.got, c.cut = nil, false
	if cut {
		CloseFDs(fds)
		return nil, fmt.Errorf("a frame brought more than %d descriptors", MaxFDs)
	}
	return fds, nil
}

// CloseFDs closes descriptors that are not needed.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
