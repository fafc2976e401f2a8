package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// scheme starts addresses of other machines: "tls:HOST:PORT".
const scheme = "tls"

// greeting bounds the handshake of two machines.
const greeting = 5 * time.Second

// Purpose is what a connection to another machine is for.
type Purpose string

// The purposes.
const (
	ToLead  Purpose = "lead" // from a leader, for Serve
	ToLook  Purpose = "look" // to see whether a host answers; nothing follows
	toMatch Purpose = "rank" // from host to host, for a mesh
)

// Network is how the machines of a cluster reach each other: TCP, encrypted and authenticated by their key. Each side
// names its program version before anything else is sent; this first line is the same in all versions.
type Network struct {
	Key     *Key
	Build   string        // version of the program
	Silence time.Duration // after which a machine is given up, 0: the constant Silence
}

// first returns the line that each side begins with: protocol, build, and what the sender wants or answers.
func (n *Network) first(word string) string {
	return fmt.Sprintf("patchbay-ranks %d %s %s\n", Version, strings.ReplaceAll(cmp.Or(n.Build, "dev"), " ", "_"), word)
}

// maxFirst bounds the first line.
const maxFirst = 256

// readFirst reads the first line of the other side and compares versions.
func (n *Network) readFirst(c io.Reader) (word string, err error) {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(c, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			break
		}
		if line = append(line, b[0]); len(line) > maxFirst {
			return "", errors.New("it does not speak the protocol of ranks")
		}
	}
	f := strings.SplitN(string(line), " ", 4)
	if len(f) != 4 || f[0] != "patchbay-ranks" {
		return "", errors.New("it does not speak the protocol of ranks")
	}
	ours := strings.Fields(n.first(""))
	if f[1] != ours[1] || f[2] != ours[2] {
		return "", fmt.Errorf("it runs version %s (protocol %s), this machine %s (protocol %s): install the same on both",
			f[2], f[1], ours[2], ours[1])
	}
	return f[3], nil
}

// Dial connects to a host, "HOST:PORT". The connection fails once the other side has been silent for n.Patience(), or
// for half of that if to is ToLead. Errors say what is wrong with the host without naming it.
func (n *Network) Dial(ctx context.Context, address string, to Purpose) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, greeting)
	defer cancel()
	raw, err := (&net.Dialer{KeepAliveConfig: keepAlive()}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, plain(err)
	}
	limit := n.Patience()
	if to == ToLead {
		limit /= 2 // the leader notices first, and names the host
	}
	c := tls.Client(timedConn{raw, limit}, n.Key.config())
	word, err := n.greet(ctx, raw, c, func() (string, error) {
		if _, err := io.WriteString(c, n.first(string(to))); err != nil {
			return "", err
		}
		return n.readFirst(c)
	})
	if err == nil && word != "welcome" {
		err = errors.New(word)
	}
	if err != nil {
		_ = raw.Close()
		return nil, plain(err)
	}
	return c, nil
}

// lead connects to a host, "HOST:PORT", as its leader.
func (n *Network) lead(address string) (*Process, error) {
	conn, err := n.Dial(context.Background(), address, ToLead)
	if err != nil {
		return nil, err
	}
	c, err := newClient("host "+address, conn, nil)
	if err == nil {
		c.address = scheme + ":" + address
	}
	return c, err
}

func (c *Process) host() string { return strings.TrimPrefix(c.address, scheme+":") }

// dialHost connects to another host of a mesh, by the address that a leader has for it.
func (n *Network) dialHost(ctx context.Context, address string) (net.Conn, error) {
	name, at, _ := strings.Cut(address, ":")
	if name != scheme {
		return nil, fmt.Errorf("%s is no address of a host", address)
	}
	return n.Dial(ctx, at, toMatch)
}

// Accept shakes hands with a machine that has connected. admit returns why its purpose is refused now, "" if it is not;
// the answer says so. Accept closes raw if it fails.
func (n *Network) Accept(ctx context.Context, raw net.Conn, admit func(Purpose) string) (net.Conn, Purpose, error) {
	ctx, cancel := context.WithTimeout(ctx, greeting)
	defer cancel()
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(keepAlive())
	}
	c := tls.Server(timedConn{raw, n.Patience()}, n.Key.config())
	word, err := n.greet(ctx, raw, c, func() (string, error) {
		word, err := n.readFirst(c)
		answer := "welcome"
		if err == nil {
			if no := admit(Purpose(word)); no != "" {
				answer, err = no, errors.New(no)
			}
		}
		if _, sent := io.WriteString(c, n.first(answer)); err == nil {
			err = sent
		}
		return word, err
	})
	if err != nil {
		_ = c.Close() // sends close_notify, so that the answer arrives
		return nil, "", plain(err)
	}
	return c, Purpose(word), nil
}

// greet does the TLS handshake and runs talk, all within the time of ctx.
func (n *Network) greet(ctx context.Context, raw net.Conn, c *tls.Conn, talk func() (string, error)) (string, error) {
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	word, err := "", c.HandshakeContext(ctx)
	if err == nil {
		word, err = talk()
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("it does not answer within %v", greeting)
	}
	return word, err
}

// Patience returns how long the other side of a connection may be silent, which is twice what a leader allows.
func (n *Network) Patience() time.Duration { return 2 * cmp.Or(n.Silence, Silence) }

// keepAlive makes the kernel detect dead connections, such as a pulled cable.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// plain returns why a machine cannot be reached, without the addresses that package net adds, and alike on both sides
// of a handshake.
func plain(err error) error {
	var alert tls.AlertError
	if errors.As(err, &alert) && alert == 42 { // bad_certificate: what the other side thinks of errOtherKey
		return errOtherKey
	}
	if errors.Is(err, errOtherKey) {
		return errOtherKey
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return op.Err
	}
	if errors.Is(err, io.EOF) {
		return errors.New("it closed the connection")
	}
	return err
}

// Address checks HOST:PORT and adds the given port if there is none.
func Address(text string, port int) (string, error) {
	host, at, err := net.SplitHostPort(text)
	if err != nil {
		host, at = strings.Trim(text, "[]"), strconv.Itoa(port)
		if ip := net.ParseIP(host); ip == nil && strings.Contains(host, ":") {
			return "", fmt.Errorf("%q: want HOST:PORT", text)
		}
	}
	if n, err := strconv.ParseUint(at, 10, 16); err != nil || n == 0 || host == "" ||
		strings.ContainsAny(host, " /\t\r\n") {
		return "", fmt.Errorf("%q: want HOST:PORT", text)
	}
	return net.JoinHostPort(host, at), nil
}
