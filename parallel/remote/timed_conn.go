package remote

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Silence is how long a process may send nothing before it is given up. It reports its ranks five times a second.
const Silence = 20 * time.Second

// again is the grace period after that: this process may itself have been suspended.
const again = time.Second

// timedConn is a connection whose other end must send something, and take something of what is written, within the
// limit each time.
type timedConn struct {
	net.Conn
	limit time.Duration
}

// hangError says that the process at the other end of a working connection has stopped responding.
type hangError struct{ text string }

func (e *hangError) Error() string { return e.text }

func (p timedConn) Read(b []byte) (n int, err error) {
	for _, limit := range []time.Duration{p.limit, again} {
		_ = p.SetReadDeadline(time.Now().Add(limit))
		if n, err = p.Conn.Read(b); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	return 0, &hangError{fmt.Sprintf("it has said nothing for %v", p.limit)}
}

func (p timedConn) Write(b []byte) (done int, err error) {
	for limit := p.limit; ; limit = again {
		_ = p.SetWriteDeadline(time.Now().Add(limit))
		n, err := p.Conn.Write(b[done:])
		done += n
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return done, err
		case n == 0 && limit == again:
			return done, &hangError{fmt.Sprintf("it has taken nothing for %v", p.limit)}
		}
	}
}
