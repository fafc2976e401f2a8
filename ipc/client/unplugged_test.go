package client_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// TestRepliesBeforeTheEnd checks that replies which had come when the server went away are read before the request ends
// with ErrNoDaemon. The server is a listener that answers one request many times and closes the connection at once.
func TestRepliesBeforeTheEnd(t *testing.T) {
	const replies = 200
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer l.Close() // before the connection: no other one is taken
		defer c.Close()
		fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"version\":\"2.15.0\",\"proto\":1,\"headers\":true,"+
			"\"max_payload\":1048576}\r\n")
		inbox, sid := "", ""
		for in := bufio.NewScanner(c); in.Scan(); {
			word := strings.Fields(in.Text() + " .")
			switch word[0] {
			case "PING":
				fmt.Fprintf(c, "PONG\r\n")
			case "SUB":
				inbox, sid = word[1], word[2]
			case "HPUB":
				var out bytes.Buffer
				body := fmt.Sprintf(`{"type":"event","pad":%q}`, strings.Repeat("x", 5000))
				for range replies {
					fmt.Fprintf(&out, "MSG %s %s %d\r\n%s\r\n", inbox, sid, len(body), body)
				}
				_, _ = c.Write(out.Bytes())
				return
			}
		}
	}()
	c, err := client.DialNATS("nats://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := c.Ask(context.Background(), message.VerbStatus, "x", message.JobRequest{Job: "x", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for n := 0; ; n++ {
		if _, err = r.Next(context.Background()); err != nil {
			if n != replies || !errors.Is(err, client.ErrNoDaemon) {
				t.Errorf("%d replies and %v, want %d and %v", n, err, replies, client.ErrNoDaemon)
			}
			return
		}
	}
}
