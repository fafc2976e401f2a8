// Package natsproxy stands between a NATS client and its server and injects the faults of networks and servers: it
// drops or cuts single messages of the client, and cuts one connection or all. Only tests import it.
package natsproxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
)

// Proxy relays connections to a server. It numbers the messages that clients publish (PUB and HPUB, requests included)
// over all connections, from 1.
type Proxy struct {
	URL string // for clients

	dial  func() (net.Conn, error) // a connection to the server
	mu    sync.Mutex
	count int
	fault func(n int, subject string) Fault
	open  map[net.Conn]bool
}

// Fault is what happens to one message.
type Fault int

// The faults.
const (
	Pass Fault = iota
	Drop       // the message is lost, the connection stays
	Cut        // the connection ends in the middle of the message
	Mute       // the message arrives, and the connection ends before its answer
)

// Start starts a proxy in front of the server at host:port. It ends with the test. fault decides the fate of every
// message.
func Start(tb testing.TB, server string, fault func(n int, subject string) Fault) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := newProxy(tb, func() (net.Conn, error) { return net.Dial("tcp", server) }, fault)
	p.URL = "nats://" + l.Addr().String()
	tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p
}

// Within returns a proxy without a listener in front of a server in this process: it implements
// nats.InProcessConnProvider.
func Within(tb testing.TB, server nats.InProcessConnProvider, fault func(n int, subject string) Fault) *Proxy {
	p := newProxy(tb, server.InProcessConn, fault)
	p.URL = "nats://proxy"
	return p
}

func newProxy(tb testing.TB, dial func() (net.Conn, error), fault func(n int, subject string) Fault) *Proxy {
	p := &Proxy{dial: dial, fault: fault, open: map[net.Conn]bool{}}
	tb.Cleanup(p.CutAll)
	return p
}

// InProcessConn returns a connection through the proxy.
func (p *Proxy) InProcessConn() (net.Conn, error) {
	client, c := net.Pipe()
	go p.serve(c)
	return client, nil
}

// Count returns the number of messages that clients have sent so far.
func (p *Proxy) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// CutOne ends an arbitrary connection. It reports whether there was one.
func (p *Proxy) CutOne() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close()
		return true
	}
	return false
}

// CutAll ends all connections.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close()
	}
}

func (p *Proxy) keep(c net.Conn, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.open[c] = true
	} else {
		delete(p.open, c)
		_ = c.Close()
	}
}

func (p *Proxy) serve(c net.Conn) {
	p.keep(c, true)
	defer p.keep(c, false)
	s, err := p.dial()
	if err != nil {
		return
	}
	p.keep(s, true)
	defer p.keep(s, false)
	go func() {
		_, _ = io.Copy(c, s)
		_ = c.Close()
	}()
	r := bufio.NewReaderSize(c, 64<<10)
	for p.pass(r, s, func() { _ = c.Close() }) == nil {
	}
}

// pass relays one line to the server, with the message behind it if it announces one. mute closes the client's
// connection.
func (p *Proxy) pass(r *bufio.Reader, s net.Conn, mute func()) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	words := bytes.Fields(line)
	if len(words) < 3 || !bytes.EqualFold(words[0], []byte("PUB")) && !bytes.EqualFold(words[0], []byte("HPUB")) {
		_, err = s.Write(line)
		return err
	}
	size, err := strconv.Atoi(string(words[len(words)-1]))
	if err != nil {
		return err
	}
	body := make([]byte, size+2)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	p.mu.Lock()
	p.count++
	fault := p.fault(p.count, string(words[1]))
	p.mu.Unlock()
	switch fault {
	case Drop:
		return nil
	case Cut:
		_, _ = s.Write(append(line, body[:size/2]...))
		return io.ErrUnexpectedEOF
	case Mute:
		mute()
		_, _ = s.Write(append(line, body...))
		if c, ok := s.(*net.TCPConn); ok { // once the server closes too, it has read everything
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		}
		return io.ErrUnexpectedEOF
	}
	_, err = s.Write(append(line, body...))
	return err
}
