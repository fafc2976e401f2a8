package remote

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"patchbay/parallel/comm/stream"
)

// joining bounds how long processes take to connect to each other.
const joining = 15 * time.Second

// tokenLength is the length in bytes of the secret that keeps strangers out of a mesh.
const tokenLength = 32

func newToken() []byte {
	t := make([]byte, tokenLength)
	_, _ = rand.Read(t) // never fails
	return t
}

// connect makes the mesh of a process: it dials the processes before it and accepts those after it. Speed is zero
// unless m.Probe is set.
func (m *mesh) connect(l net.Listener, dial func(address string) (net.Conn, error)) (*stream.Mesh, Speed, error) {
	if m.Self < 0 || m.Self >= len(m.Addresses) || len(m.Names) != len(m.Addresses) || len(m.Token) != tokenLength {
		return nil, Speed{}, fmt.Errorf("process %d of %d with a token of %d bytes: not a mesh", m.Self, len(m.Addresses),
			len(m.Token))
	}
	conns := make([]io.ReadWriteCloser, len(m.Addresses))
	fail := func(err error) (*stream.Mesh, Speed, error) {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, Speed{}, err
	}
	for p, address := range m.Addresses[:m.Self] {
		c, err := dial(address)
		if err != nil {
			return fail(fmt.Errorf("connect to %s: %w", m.Names[p], err))
		}
		conns[p] = c
		if _, err := c.Write(binary.LittleEndian.AppendUint32(m.Token, uint32(m.Self))); err != nil {
			return fail(fmt.Errorf("connect to %s: %w", m.Names[p], err))
		}
	}
	if d, ok := l.(interface{ SetDeadline(time.Time) error }); ok {
		_ = d.SetDeadline(time.Now().Add(joining))
	}
	for missing := len(conns) - m.Self - 1; missing > 0; {
		c, err := l.Accept()
		if err != nil {
			return fail(fmt.Errorf("wait for %d others: %w", missing, err))
		}
		p, ok := m.admit(c)
		if !ok || conns[p] != nil {
			_ = c.Close() // not a process of the mesh
			continue
		}
		conns[p] = c
		missing--
	}
	var speed Speed
	if m.Probe {
		var err error
		if speed, err = probe(m.Self, conns); err != nil {
			return fail(err)
		}
	}
	return stream.NewMesh(m.Self, conns, m.Names), speed, nil
}

// dialUnix connects to a process on this machine.
func dialUnix(address string) (net.Conn, error) {
	network, at, _ := strings.Cut(address, ":")
	if network != "unix" {
		return nil, fmt.Errorf("%s is on another machine", address)
	}
	return net.DialTimeout(network, at, joining)
}

// admit reads which process connects. ok is false if it does not know the token.
func (m *mesh) admit(c net.Conn) (process int, ok bool) {
	head := make([]byte, tokenLength+4)
	_ = c.SetReadDeadline(time.Now().Add(joining / 3))
	if _, err := io.ReadFull(c, head); err != nil {
		return 0, false
	}
	_ = c.SetReadDeadline(time.Time{})
	process = int(binary.LittleEndian.Uint32(head[tokenLength:]))
	known := subtle.ConstantTimeCompare(head[:tokenLength], m.Token) == 1
	return process, known && process > m.Self && process < len(m.Addresses)
}
