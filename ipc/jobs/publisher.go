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

// Publisher sends messages in order from a goroutine of its own, so that appending an event never waits for the
// network.
type Publisher struct {
	nc    *nats.Conn
	log   zerolog.Logger
	queue chan *nats.Msg
	done  chan struct{}

	mu    sync.RWMutex
	ended bool
}

// publishQueue bounds the number of messages that wait. Beyond it, while the server is away, events are lost. They are
// only hints: the record is in the job table.
const publishQueue = 16384

// headRoom is the part of a message, in bytes, that its headers may take.
const headRoom = 4096

// NewPublisher starts the goroutine; Close ends it.
func NewPublisher(nc *nats.Conn, log zerolog.Logger) *Publisher {
	p := &Publisher{nc: nc, log: log, queue: make(chan *nats.Msg, publishQueue), done: make(chan struct{})}
	go p.run()
	return p
}

// Put queues a message, or drops it if the queue is full. It does not block.
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

// Close sends what is queued and ends the goroutine. A second call only waits for that.
func (p *Publisher) Close() {
	p.mu.Lock()
	if !p.ended {
		p.ended = true
		close(p.queue)
	}
	p.mu.Unlock()
	<-p.done
}

// EventMessage encodes an event as it is published on patchbay.v1.events.<job>.<type>, in JSON. owner is the daemon
// that sends it; empty if there are no others. An event that does not fit into limit bytes is shortened.
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
	if message.Terminal(ev.Type) { // the stream stores an end once, whoever sends it
		h.Set(jetstream.MsgIDHeader, fmt.Sprintf("%s.%d.%d.end", ev.Job, ev.Attempt, ev.TS))
	}
	return &nats.Msg{Subject: message.EventSubject(ev.Job, ev.Type), Data: b, Header: h}, nil
}
