package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"patchbay/cli/console"
	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/ipc/wire"
)

// logger writes lines of the least level and above to stderr: for people on a terminal, JSON lines elsewhere.
func logger(errs io.Writer, least string) zerolog.Logger {
	level, err := zerolog.ParseLevel(least)
	if err != nil {
		level = zerolog.InfoLevel
	}
	w := errs
	if console.IsTerminal(errs) {
		w = zerolog.ConsoleWriter{Out: errs, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// target says which daemon a client command talks to.
type target struct {
	nats, socket string
	access       wire.Access
}

func (t *target) add(f *pflag.FlagSet) {
	f.StringVar(&t.nats, "nats", "", "URL of the daemon's NATS server (default $PATCHBAY_NATS_URL or "+wire.DefaultNATS+")")
	f.StringVar(&t.socket, "socket", "", "unix socket of the daemon")
	addAccess(f, &t.access)
}

// given tells whether the command line names a daemon.
func (t *target) given() bool { return t.nats != "" || t.socket != "" }

// dial connects to the daemon that flags or environment name; without any, to the default NATS address, or else to the default socket.
func (t *target) dial() (client.Client, error) {
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
	return nil, fmt.Errorf("%w (start one with `patchbay serve`, or name one with --nats or --socket; `patchbay run --local` needs none)", err)
}

func (t *target) dialNATS(url string) (client.Client, error) {
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

// asking is the time that one question to a daemon may take.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 15*time.Second)
}
