package register

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/wire"
)

// Member is a register with a connection of its own, which announces its machine until Close.
type Member struct {
	*Register
	nc   *nats.Conn
	stop func()
}

// joinTime bounds Join.
const joinTime = 10 * time.Second

// Join connects to a server, which may become unreachable later, and announces a machine there; say is that of
// Announce. inside is the server inside this process; nil: url is dialed. It returns an error if the server has no
// JetStream.
func Join(ctx context.Context, url string, access wire.Access, inside nats.InProcessConnProvider, cfg Config,
	say func(error),
) (*Member, error) {
	nc, err := wire.Connect(url, access, inside, "patchbay hosts", nats.ReconnectBufSize(-1),
		nats.ReconnectWait(100*time.Millisecond), nats.PingInterval(10*time.Second))
	if err != nil {
		return nil, err
	}
	var r *Register
	js, err := jetstream.New(nc)
	if err == nil {
		open, cancel := context.WithTimeout(ctx, joinTime)
		r, err = Open(open, js, cfg)
		cancel()
	}
	if err != nil {
		nc.Close()
		if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders) {
			err = fmt.Errorf("the NATS server has no JetStream, where machines find each other (not with --queue memory): %w",
				err)
		}
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Announce(life, say)
	}()
	return &Member{r, nc, func() { stop(); <-ended }}, nil
}

// Close removes the machine from the register and ends the connection.
func (m *Member) Close() {
	m.stop()
	m.Register.Close()
	m.nc.Close()
}
