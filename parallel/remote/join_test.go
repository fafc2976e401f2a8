package remote

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"patchbay/parallel/comm/stream"
)

// TestStrangersAreNotAdmitted checks that a caller without the token, or with a place that is not expected, is
// disconnected, and that the processes still meet.
func TestStrangersAreNotAdmitted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	self := mesh{Self: 0, Addresses: []string{"unix:" + path, "unix:nobody"}, Names: []string{"a", "b"}, Token: newToken()}
	connected := make(chan *stream.Mesh, 1)
	go func() {
		m, _, err := self.connect(l, dialUnix)
		if err != nil {
			t.Error(err)
		}
		connected <- m
	}()
	token := func(change byte) []byte {
		out := append([]byte(nil), self.Token...)
		out[0] ^= change
		return out
	}
	for name, head := range map[string][]byte{
		"another token":  append(token(1), 1, 0, 0, 0),
		"another place":  append(token(0), 2, 0, 0, 0),
		"the own place":  append(token(0), 0, 0, 0, 0),
		"half a request": token(0)[:5],
	} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(head); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.UnixConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(joining))
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%s: was answered", name)
		} else if e, ok := err.(net.Error); ok && e.Timeout() { //nolint:errorlint // from the connection itself
			t.Errorf("%s: was not closed", name)
		}
		_ = c.Close()
	}
	select {
	case <-connected:
		t.Fatal("a stranger took a place")
	default:
	}
	other := self
	other.Self = 1
	second, _, err := other.connect(nil, dialUnix)
	if err != nil {
		t.Fatal(err)
	}
	first := <-connected
	first.Close()
	second.Close()
}
