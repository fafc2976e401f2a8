package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// ageing is the number of jobs after which the least urgent class is asked first once, so that no job starves.
const ageing = 8

// idlePoll is how often a daemon with a free worker polls the queue without a hint.
const idlePoll = 250 * time.Millisecond

// firstPoll is the pause before the next poll after a hint that led to nothing; further pauses double up to idlePoll.
const firstPoll = time.Millisecond

// enqueue adds a reference to a job to the queue and wakes daemons up. A job that has a reference already is no error.
func (l *JetStream) enqueue(ctx context.Context, rec message.Record) error {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	_, err := l.js.Publish(ctx, message.QueueRoot+message.OrNormal(rec.Priority)+".any."+rec.Job, []byte(rec.Job))
	var api *jetstream.APIError
	if errors.As(err, &api) && strings.Contains(api.Description, "per subject") {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("queue job %s: %w", rec.Job, err)
	}
	l.poke()
	return l.nc.Publish(message.HintSubject, nil)
}

func (l *JetStream) poke() {
	select {
	case l.hint <- struct{}{}:
	default:
	}
}

// reference is a message of the queue that names a job. The server delivers it again if it is neither dropped nor given
// back. A job handed over within this process has no message: if nobody takes it after all, Reconcile enqueues one.
type reference struct {
	job string
	msg jetstream.Msg
	l   *JetStream
}

// drop acknowledges the reference, which removes it from the queue.
func (r reference) drop() {
	if r.msg != nil {
		_ = r.msg.Ack()
	}
}

// offer implements Store: a job that is first and can run here goes directly to a waiting worker, if there is one, and
// any other job to the queue.
func (l *JetStream) offer(ctx context.Context, rec message.Record, first bool) error {
	if first && l.lacks(rec) == nil && l.handOver(rec.Job) {
		return nil
	}
	return l.enqueue(ctx, rec)
}

func (l *JetStream) remind(ctx context.Context, waiting []message.Record, now time.Time) error {
	if len(waiting) == 0 { // references of ended jobs may be stuck in the queue all the same
		info, err := l.queue.Info(ctx)
		if err != nil || info.State.Msgs == 0 {
			return err
		}
	}
	if err := l.unstick(ctx, now); err != nil {
		return err
	}
	have, err := l.waiting(ctx)
	if err != nil {
		return err
	}
	for _, rec := range waiting {
		if have[rec.Job] {
			continue
		}
		if err := l.enqueue(ctx, rec); err != nil {
			return err
		}
		l.cfg.Log.Warn().Str("job", rec.Job).Msg("a waiting job had no reference in the queue; it has one now")
	}
	return nil
}

// handOver gives a new job to a waiting worker of this process and reports whether there was one.
func (l *JetStream) handOver(job string) bool {
	select {
	case l.hand <- job:
		return true
	default:
		return false
	}
}

// giveBack leaves the reference to another daemon: at once after its first delivery, later after any other.
func (r reference) giveBack() {
	if r.msg == nil {
		return
	}
	pause := time.Duration(0)
	if meta, err := r.msg.Metadata(); err == nil && meta.NumDelivered > 1 {
		pause = givenBack
	}
	_ = r.msg.NakWithDelay(pause)
	_ = r.l.nc.Publish(message.HintSubject, nil)
}

// givenBack is the pause before a reference that was given back more than once is delivered again.
const givenBack = 500 * time.Millisecond

func (l *JetStream) next(ctx context.Context, j *Table) (reference, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return reference{}, ctx.Err()
	}
	defer func() { <-l.turn }()
	for pause := idlePoll; ; {
		if ctx.Err() != nil {
			return reference{}, ctx.Err()
		}
		if m := l.look(ctx, j.wants); m != nil {
			l.taken++
			l.poke() // there may be more for the next caller
			return reference{wire.LastToken(m.Subject()), m, l}, nil
		}
		select {
		case <-ctx.Done():
		case job := <-l.hand:
			return reference{job: job}, nil
		case <-l.hint:
			pause = firstPoll // a hint may arrive before the consumers have seen the message
		case <-time.After(pause): // hints may be lost, and a redelivery has none
			pause = min(2*pause, idlePoll)
		}
	}
}

// look fetches one message from the classes in their order; nil if there is none or wanted reports false.
func (l *JetStream) look(ctx context.Context, wanted func() bool) jetstream.Msg {
	if !wanted() {
		return nil
	}
	order := []int{0, 1, 2}
	if l.taken%ageing == ageing-1 {
		order = []int{2, 0, 1}
	}
	for _, i := range order {
		if m := l.fetch(ctx, l.classes[i]); m != nil {
			return m
		}
	}
	return nil
}

// fetch returns a message that is available now; nil if there is none or the server is away.
func (l *JetStream) fetch(ctx context.Context, c jetstream.Consumer) jetstream.Msg {
	batch, err := c.FetchNoWait(1)
	if err != nil {
		return nil
	}
	select {
	case m := <-batch.Messages():
		return m
	case <-ctx.Done():
	case <-time.After(serverPatience):
	}
	return nil
}

// waiting returns the jobs that have a reference in the queue.
func (l *JetStream) waiting(ctx context.Context) (map[string]bool, error) {
	info, err := l.queue.Info(ctx, jetstream.WithSubjectFilter(message.QueueRoot+">"))
	if err != nil {
		return nil, fmt.Errorf("read queue: %w", err)
	}
	out := map[string]bool{}
	for subject := range info.State.Subjects {
		out[wire.LastToken(subject)] = true
	}
	return out, nil
}

// unstick removes references that no consumer will ever deliver; Reconcile then enqueues new ones. The server may have
// such references after it could not write for a while: it writes the state of consumers and the stream separately, and
// a reference that a consumer counts as acknowledged may be back in the stream. A reference is stuck if its sequence
// number is at or below the ack floor of its consumer, or if the consumer has nothing pending and nothing in flight.
func (l *JetStream) unstick(ctx context.Context, now time.Time) error {
	for i, c := range l.classes {
		info, err := c.Info(ctx)
		if err != nil {
			return fmt.Errorf("read consumer of the queue: %w", err)
		}
		idle := info.NumPending == 0 && info.NumAckPending == 0
		filter := message.QueueRoot + message.Priorities()[i] + ".any.*"
		for from := uint64(1); ; {
			m, err := l.queue.GetMsg(ctx, from, jetstream.WithGetMsgSubject(filter))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				break
			}
			if err != nil {
				return fmt.Errorf("read queue: %w", err)
			}
			age := now.Sub(m.Time) // negative: a clock has jumped since
			if !idle && m.Sequence > info.AckFloor.Stream || age >= 0 && age < settled {
				break
			}
			l.cfg.Log.Warn().Str("job", wire.LastToken(m.Subject)).Uint64("seq",
				m.Sequence).Msg("the NATS server had a reference that it would never give out; it is made anew")
			if err := l.queue.DeleteMsg(ctx, m.Sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
				return fmt.Errorf("clean queue: %w", err)
			}
			from = m.Sequence + 1
		}
	}
	return nil
}

// endPublished implements Store. It looks for the terminal event itself, since the last event of the job may come from
// a daemon that was frozen and has lost the job.
func (l *JetStream) endPublished(ctx context.Context, rec message.Record) (bool, error) {
	end, at, err := l.last(ctx, rec.Job, terminalOf(rec).Type)
	if end == nil && err == nil {
		return l.aged(ctx, rec)
	}
	if err != nil || end.Attempt < rec.Attempt {
		return false, err
	}
	if len(rec.Causes) == 0 {
		return true, nil
	}
	again, after, err := l.last(ctx, rec.Job, message.EventRetrying)
	return err == nil && (again == nil || again.Attempt < end.Attempt || after < at), err
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

// last returns the newest event of a type of a job and its sequence number in the stream; nil if there is none.
func (l *JetStream) last(ctx context.Context, job, kind string) (*message.Event, uint64, error) {
	m, err := l.stored(ctx, message.EventStream, map[string]any{"last_by_subj": message.EventSubject(job, kind)})
	if errors.Is(err, ErrNoJob) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read last event of job %s: %w", job, err)
	}
	ev, err := readEvent(m.Data)
	return ev, m.Seq, err
}

// log reads the events of a job from the stream, in order.
func (l *JetStream) log(ctx context.Context, job string) ([]message.Event, error) {
	c, err := l.events.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{message.EventSubject(job, "*")}, InactiveThreshold: 5 * time.Second,
	})
	if err != nil {
		return nil, fmt.Errorf("read events of job %s: %w", job, err)
	}
	left := c.CachedInfo().NumPending
	var out []message.Event
	for left > 0 {
		batch, err := c.Fetch(int(min(left, 256)), jetstream.FetchMaxWait(serverPatience))
		if err != nil {
			return out, fmt.Errorf("read events of job %s: %w", job, err)
		}
		got := uint64(0)
		for m := range batch.Messages() {
			got++
			if ev, err := readEvent(m.Data()); err == nil {
				out, _ = followed(out, *ev)
			}
		}
		if got == 0 { // lost on the way, or removed since
			return out, fmt.Errorf("read events of job %s: %d of them did not come: %w", job, left,
				cmp.Or(batch.Error(), context.DeadlineExceeded))
		}
		left -= min(left, got)
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
