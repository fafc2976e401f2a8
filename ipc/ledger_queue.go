package ipc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ageing: every so many jobs, the least urgent class is asked first, so that nothing waits for ever.
const ageing = 8

// idlePoll is how often a daemon with a free worker looks into the queue unasked.
const idlePoll = 250 * time.Millisecond

// enqueue puts a reference to a job into the queue, and wakes daemons up. A job that has one already is fine.
func (l *Ledger) enqueue(ctx context.Context, rec Record) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerPatience)
	defer cancel()
	_, err := l.js.Publish(ctx, queueRoot+orNormal(rec.Priority)+".any."+rec.Job, []byte(rec.Job))
	var api *jetstream.APIError
	if errors.As(err, &api) && strings.Contains(api.Description, "per subject") {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("queue job %s: %w", rec.Job, err)
	}
	l.poke()
	return l.nc.Publish(hintSubject, nil)
}

func (l *Ledger) poke() {
	select {
	case l.hint <- struct{}{}:
	default:
	}
}

// next waits for a reference: the job's id, and the call that takes the reference out of the queue. A reference that is not taken out comes again.
func (l *Ledger) next(ctx context.Context) (string, func(), error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return "", nil, ctx.Err()
	}
	defer func() { <-l.turn }()
	for {
		if ctx.Err() != nil {
			return "", nil, ctx.Err()
		}
		order := []int{0, 1, 2}
		if l.taken%ageing == ageing-1 {
			order = []int{2, 0, 1}
		}
		for _, i := range order {
			m := l.fetch(ctx, l.classes[i])
			if m == nil {
				continue
			}
			l.taken++
			l.poke() // there may be more for the next one who asks
			return lastToken(m.Subject()), func() { _ = m.Ack() }, nil
		}
		select {
		case <-ctx.Done():
		case <-l.hint:
		case <-time.After(idlePoll): // a hint may be lost, and a reference comes back without one
		}
	}
}

// fetch asks for one message that is there now; nil if there is none or the server is away.
func (l *Ledger) fetch(ctx context.Context, c jetstream.Consumer) jetstream.Msg {
	batch, err := c.FetchNoWait(1)
	if err != nil {
		return nil
	}
	select {
	case m := <-batch.Messages():
		return m
	case <-ctx.Done():
	case <-time.After(ledgerPatience):
	}
	return nil
}

// waiting returns the jobs that have a reference in the queue.
func (l *Ledger) waiting(ctx context.Context) (map[string]bool, error) {
	info, err := l.queue.Info(ctx, jetstream.WithSubjectFilter(queueRoot+">"))
	if err != nil {
		return nil, fmt.Errorf("read queue: %w", err)
	}
	out := map[string]bool{}
	for subject := range info.State.Subjects {
		out[lastToken(subject)] = true
	}
	return out, nil
}

// lastEvent returns the newest event of a job in the stream; nil if there is none.
func (l *Ledger) lastEvent(ctx context.Context, job string) (*Event, error) {
	m, err := l.events.GetLastMsgForSubject(ctx, EventSubject(job, "*"))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read last event of job %s: %w", job, err)
	}
	return readEvent(m.Data)
}

// log reads the events of a job from the stream, in order.
func (l *Ledger) log(ctx context.Context, job string) ([]Event, error) {
	c, err := l.events.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{EventSubject(job, "*")}, InactiveThreshold: 5 * time.Second})
	if err != nil {
		return nil, fmt.Errorf("read events of job %s: %w", job, err)
	}
	left := c.CachedInfo().NumPending
	var out []Event
	for left > 0 {
		batch, err := c.Fetch(int(min(left, 256)), jetstream.FetchMaxWait(ledgerPatience))
		if err != nil {
			return out, fmt.Errorf("read events of job %s: %w", job, err)
		}
		got := uint64(0)
		for m := range batch.Messages() {
			got++
			if ev, err := readEvent(m.Data()); err == nil {
				out = append(out, *ev)
			}
		}
		if got == 0 {
			break
		}
		left -= min(left, got)
	}
	return out, nil
}

// hear calls f with the events of other daemons.
func (l *Ledger) hear(f func(Event)) error {
	_, err := l.nc.Subscribe(EventSubject("*", "*"), func(m *nats.Msg) {
		if from := m.Header.Get(headerDaemon); from == "" || from == l.cfg.Owner {
			return
		}
		if ev, err := readEvent(m.Data); err == nil {
			f(*ev)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to events: %w", err)
	}
	return nil
}

func readEvent(b []byte) (*Event, error) {
	o, err := Decode(b, JSON, DefaultLimits())
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	return eventOf(o)
}
