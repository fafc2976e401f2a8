package bubble

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
)

// Port is a listener at 127.0.0.1:8188 of its bubble.
type Port struct {
	calls  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewPort returns a port.
func NewPort() *Port { return &Port{calls: make(chan net.Conn), closed: make(chan struct{})} }

// Accept implements net.Listener.
func (p *Port) Accept() (net.Conn, error) {
	select {
	case c := <-p.calls:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Port) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *Port) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8188} }

// Offer hands one end of a connection to who accepts, and reports whether somebody will.
func (p *Port) Offer(c net.Conn) bool {
	select {
	case p.calls <- c:
		return true
	case <-p.closed:
		return false
	}
}

// Dial connects to the port, as a net.Dialer does to an address. The connection holds nothing: who writes waits until
// it is read.
func (p *Port) Dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	if !p.Offer(End(near)) {
		return nil, &net.OpError{Op: "dial", Net: "bubble", Err: syscall.ECONNREFUSED}
	}
	return End(far), nil
}

// End returns one end of a net.Pipe whose errors, once it is closed, are those of a socket.
func End(c net.Conn) net.Conn { return end{c} }

type end struct{ net.Conn }

func (e end) Read(b []byte) (int, error) {
	n, err := e.Conn.Read(b)
	return n, likeSocket("read", err)
}

func (e end) Write(b []byte) (int, error) {
	n, err := e.Conn.Write(b)
	return n, likeSocket("write", err)
}

func likeSocket(op string, err error) error {
	if err == io.ErrClosedPipe { //nolint:errorlint // net.Pipe returns it bare
		return &net.OpError{Op: op, Net: "bubble", Err: net.ErrClosed}
	}
	return err
}
