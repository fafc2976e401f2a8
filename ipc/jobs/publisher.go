package jobs

import (
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Publisher sends messages in order from a goroutine of its own, so that whoever makes an event never waits for the
// network.
type Publisher struct {
	nc    *nats.Conn
	log   zerolog.Logger
	queue chan *nats.Msg
	done  chan struct{}

	mu    sync.RWMutex
	ended bool
}

// publishQueue bounds what waits; a server that is away this long loses events, which are hints: the record is in the
// job table.
const publishQueue = 16384

// headRoom is what the headers of a message may take of it.
const headRoom = 4096

// NewPublisher starts the goroutine; close ends it.
func NewPublisher(nc *nats.Conn, log zerolog.Logger) *Publisher {
	p := &Publisher{nc: nc, log: log, queue: make(chan *nats.Msg, publishQueue), done: make(chan struct{})}
	go p.run()
	return p
}

// Put queues a message. It does not block.
func (p *Publisher) Put(m *nats.Msg) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.ended {
		return
	}
	select {
	case p.queue <- m:
	default:
	}
}

func (p *Publisher) run() {
	defer close(p.done)
	for m := range p.queue {
		if err := p.nc.PublishMsg(m); err != nil {
			p.log.Warn().Err(err).Str("subject", m.Subject).Msg("not published")
		}
	}
}

// Close sends what waits and ends the goroutine. A second call does nothing.
func (p *Publisher) Close() {
	p.mu.Lock()
	if !p.ended {
		p.ended = true
		close(p.queue)
	}
	p.mu.Unlock()
	<-p.done
}

// EventMessage is an event as it is published on patchbay.v1.events.<job>.<type>, in JSON; owner is the daemon that
// sends it, empty: there are no others. One that is longer than a message may be, limit, goes in short.
func EventMessage(ev message.Event, owner string, limit int) (*nats.Msg, error) {
	b, err := wire.Encode(ev, wire.JSON)
	if err == nil && len(b) > limit-headRoom {
		b, err = wire.Encode(ev.Short(), wire.JSON)
	}
	if err != nil {
		return nil, err
	}
	h := nats.Header{"Content-Type": {wire.JSON.ContentType()}}
	if owner != "" {
		h.Set(wire.HeaderDaemon, owner)
	}
	if message.Terminal(ev.Type) { // the stream takes one an end, whoever sends it
		h.Set(jetstream.MsgIDHeader, fmt.Sprintf("%s.%d.%d.end", ev.Job, ev.Attempt, ev.TS))
	}
	return &nats.Msg{Subject: message.EventSubject(ev.Job, ev.Type), Data: b, Header: h}, nil
}
