package settings

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"patchbay/cli/console"
	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/ipc/wire"
)

// Target says which daemon a client command talks to.
type Target struct {
	nats, socket string
	access       wire.Access
	reconnect    time.Duration
}

// Add adds the flags that name the daemon.
func (t *Target) Add(f *pflag.FlagSet) {
	f.StringVar(&t.nats, "nats", "",
		"URL of the daemon's NATS server (default $PATCHBAY_NATS_URL or "+wire.DefaultNATS+")")
	f.StringVar(&t.socket, "socket", "", "unix socket of the daemon")
	Access(f, &t.access)
}

// Given reports whether the command line names a daemon.
func (t *Target) Given() bool { return t.nats != "" || t.socket != "" }

// Dial connects to the daemon that flags or environment name. If they name none, it tries the default NATS address and
// then the default socket.
func (t *Target) Dial() (client.Client, error) {
	if t.nats != "" && t.socket != "" {
		return nil, console.BadInput(errors.New("--nats and --socket exclude each other"))
	}
	if err := t.access.Check(); err != nil {
		return nil, console.BadInput(err)
	}
	nats, socket := t.nats, t.socket
	if nats == "" && socket == "" {
		nats, socket = os.Getenv("PATCHBAY_NATS_URL"), os.Getenv("PATCHBAY_SOCKET")
	}
	switch {
	case t.nats != "" || nats != "" && t.socket == "":
		return t.dialNATS(nats)
	case socket != "":
		return dialSocket(socket)
	}
	c, err := t.dialNATS(wire.DefaultNATS)
	if err == nil {
		return c, nil
	}
	if s, socketErr := dialSocket(daemon.DefaultSocket()); socketErr == nil {
		return s, nil
	}
	return nil, fmt.Errorf(
		"%w (start one with `patchbay serve`, or name one with --nats or --socket; `patchbay run --local` needs none)", err)
}

// Reconnect adds the flag that says how long to wait for a daemon that has gone away.
func (t *Target) Reconnect(f *pflag.FlagSet) {
	f.DurationVar(&t.reconnect, "reconnect", time.Minute,
		"how long to wait for a daemon that has gone away while the job runs; 0: not at all")
}

// DialLasting is Dial for commands that follow a job: the client reconnects when the connection is lost.
func (t *Target) DialLasting() (*client.Lasting, error) {
	first, err := t.Dial()
	if err != nil {
		return nil, err
	}
	l := &client.Lasting{Say: func(string, ...any) {}, Patience: t.reconnect}
	l.Dial = func() (client.Client, error) {
		if c := first; c != nil {
			first = nil
			return c, nil
		}
		return t.Dial()
	}
	return l, nil
}

func (t *Target) dialNATS(url string) (client.Client, error) {
	c, err := client.DialNATSAs(url, t.access)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func dialSocket(path string) (client.Client, error) {
	c, err := client.DialSocket(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrNoDaemon, err)
	}
	return c, nil
}
