package remote

import (
	"bytes"
	"context"
	"net"
	"testing"
)

// TestSilentConnectionsKeepNobodyOut checks that a machine with the key gets in at once although 200 connections that
// say nothing came before it, three times as many as are greeted at a time.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	key, err := NewKey(bytes.Repeat([]byte{7}, SecretLength))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := Network{Key: key}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&Listener{Network: n}).Serve(ctx, l)
	}()
	defer func() { stop(); <-ended }()
	for range 200 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	c, err := n.Dial(ctx, l.Addr().String(), ToLook)
	if err != nil {
		t.Fatalf("a machine with the key is kept out: %v", err)
	}
	_ = c.Close()
}
