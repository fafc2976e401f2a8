package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// told implements Store. Of events that were dropped as too old it makes up a number.
func (l *JetStream) told(ctx context.Context, rec message.Record) (uint64, error) {
	end, err := l.last(ctx, rec.Job, terminalOf(rec).Type)
	switch {
	case err != nil:
		return 0, err
	case end != nil && end.Attempt == rec.Attempt && end.TS == rec.Finished:
		return end.Seq, nil
	}
	aged, err := l.aged(ctx, rec)
	if !aged {
		return 0, err
	}
	return uint64(len(endOf(rec))), nil
}

// aged reports whether the stream has dropped the events of an ended job as too old: it keeps none of them, and the job
// ended longer ago than it keeps events. Which events it still has proves nothing: a power failure takes the newest.
func (l *JetStream) aged(ctx context.Context, rec message.Record) (bool, error) {
	if rec.Finished == 0 || time.Since(time.UnixMilli(rec.Finished)) < keepEvents {
		return false, nil
	}
	info, err := l.events.Info(ctx, jetstream.WithSubjectFilter(message.EventSubject(rec.Job, "*")))
	if err != nil {
		return false, fmt.Errorf("list events of job %s: %w", rec.Job, err)
	}
	return len(info.State.Subjects) == 0, nil
}

// last returns the newest event of a type of a job; nil if there is none.
func (l *JetStream) last(ctx context.Context, job, kind string) (*message.Event, error) {
	m, err := l.stored(ctx, message.EventStream, map[string]any{"last_by_subj": message.EventSubject(job, kind)})
	if errors.Is(err, ErrNoJob) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read last event of job %s: %w", job, err)
	}
	return readEvent(m.Data)
}

// log reads the events of a job from the stream, in order. What a consumer does not deliver it asks for one by one, so
// that the log is read to its end if the server has lost events that it counts.
func (l *JetStream) log(ctx context.Context, job string) ([]message.Event, error) {
	c, err := l.events.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{message.EventSubject(job, "*")}, InactiveThreshold: 5 * time.Second,
		MaxResetAttempts: 1, // or Fetch tries for ever, whatever becomes of ctx
	})
	if err != nil {
		return nil, fmt.Errorf("read events of job %s: %w", job, err)
	}
	left, last := c.CachedInfo().NumPending, uint64(0)
	var out []message.Event
	add := func(data []byte) {
		if ev, err := readEvent(data); err == nil {
			out, _ = followed(out, *ev)
		}
	}
	for left > 0 {
		batch, err := c.Fetch(int(min(left, 256)), jetstream.FetchMaxWait(serverPatience))
		if err != nil {
			return out, fmt.Errorf("read events of job %s: %w", job, err)
		}
		got := uint64(0)
		for m := range batch.Messages() {
			got++
			if meta, err := m.Metadata(); err == nil {
				last = meta.Sequence.Stream
			}
			add(m.Data())
		}
		if got == 0 {
			break
		}
		left -= min(left, got)
	}
	for left > 0 { // lost, removed, or on the way for too long
		m, err := l.stored(ctx, message.EventStream, map[string]any{
			"seq": last + 1, "next_by_subj": message.EventSubject(job, "*"),
		})
		if errors.Is(err, ErrNoJob) {
			l.cfg.Log.Error().Str("job", job).Uint64("events", left).Msg("the NATS server has lost events of the job")
			break
		}
		if err != nil {
			return out, fmt.Errorf("read events of job %s: %w", job, err)
		}
		last = m.Seq
		add(m.Data)
		left--
	}
	return out, nil
}

// hear calls f with the events of other daemons.
func (l *JetStream) hear(f func(message.Event)) error {
	_, err := l.nc.Subscribe(message.EventSubject("*", "*"), func(m *nats.Msg) {
		if from := m.Header.Get(wire.HeaderDaemon); from == "" || from == l.cfg.Owner {
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

func readEvent(b []byte) (*message.Event, error) {
	o, err := wire.Decode(b, wire.JSON, wire.DefaultLimits())
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	return message.EventOf(o)
}
