package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Silence is the longest pause in a stream of replies, after which the stream counts as lost: a daemon that runs or
// follows a job sends something every 2 s.
const Silence = 15 * time.Second

// ErrSilent ends a stream whose other side has sent nothing for too long.
var ErrSilent = errors.New("no sign of life from the daemon")

// errUnplugged ends requests that wait for replies when the connection to the NATS server breaks: some may be lost.
var errUnplugged = fmt.Errorf("%w: the connection to the NATS server was lost", ErrNoDaemon)

// receiptTime bounds the wait for the first reply to a run: it may carry inputs, and a full store may be slow.
const receiptTime = time.Minute

// Lasting is a Client that outlives its connection: a job given to Run or Follow continues, under the same ID, in the
// daemon that comes back. Other requests are sent once, on the current connection. It is safe for concurrent use.
type Lasting struct {
	Dial     func() (Client, error)           // opens a connection
	Say      func(format string, args ...any) // reports what is being waited for
	Patience time.Duration                    // how long the daemon may be away

	mu        sync.Mutex
	c         Client
	cancelled bool // a cancel was sent: revive starts no job again
}

// client returns the current connection, and dials if there is none.
func (l *Lasting) client() (Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.c == nil {
		l.c, err = l.Dial()
	}
	return l.c, err
}

// Close implements Client. A later request dials another connection.
func (l *Lasting) Close() error {
	l.mu.Lock()
	c := l.c
	l.c = nil
	l.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Close()
}

func (l *Lasting) Ask(ctx context.Context, verb, job string, body any) (*Replies, error) {
	if verb == message.VerbCancel {
		l.mu.Lock()
		l.cancelled = true
		l.mu.Unlock()
	}
	c, err := l.client()
	if err != nil {
		return nil, err
	}
	return c.Ask(ctx, verb, job, body)
}

// run is Run. It sends the request again while no receipt is known, which is safe under the same ID.
func (l *Lasting) run(ctx context.Context, req *message.RunRequest, col *Collector) (*message.Event, error) {
	receipt, accepted := col.Accepted, false
	col.Accepted = func(r message.Receipt) {
		if !accepted && receipt != nil {
			receipt(r)
		}
		accepted = true
	}
	defer func() { col.Accepted = receipt }()
	return l.attend(ctx, req.ID, col, func() (*message.Event, error) {
		c, err := l.client()
		switch {
		case err != nil:
			return nil, err
		case !accepted:
			return collect(ctx, c, message.VerbRun, "", req, col)
		}
		if err := l.revive(ctx, c, req.ID); err != nil {
			return nil, err
		}
		ask := message.JobRequest{Job: req.ID, Follow: true, From: 1, Outputs: true}
		return collect(ctx, c, message.VerbStatus, req.ID, ask, col)
	})
}

// revive retries a job that was cancelled with its connection: runs on a socket are tied to theirs.
func (l *Lasting) revive(ctx context.Context, c Client, job string) error {
	ctx, stop := context.WithTimeout(ctx, Silence)
	defer stop()
	rec, err := Status(ctx, c, job)
	if err != nil {
		return err
	}
	l.mu.Lock()
	cancelled := l.cancelled
	l.mu.Unlock()
	if rec.State != message.Cancelled || !rec.Tied || cancelled {
		return nil
	}
	return Retry(ctx, c, job)
}

func (l *Lasting) follow(ctx context.Context, ask message.JobRequest, col *Collector) (*message.Event, error) {
	return l.attend(ctx, ask.Job, col, func() (*message.Event, error) {
		return collect(ctx, l, message.VerbStatus, ask.Job, ask, col)
	})
}

// attend repeats ask, which reads the replies to one job, until the job has ended or the daemon has been away for
// Patience. col gets no event twice.
func (l *Lasting) attend(ctx context.Context, job string, col *Collector,
	ask func() (*message.Event, error),
) (*message.Event, error) {
	event, seen := col.Event, message.Event{}
	col.Event = func(ev message.Event) {
		// after a restart numbers continue from the last event that was stored, and clocks jump
		same := ev.TS == seen.TS && ev.Seq == seen.Seq && ev.Type == seen.Type
		if same || ev.TS <= seen.TS && ev.Seq <= seen.Seq && !message.Terminal(ev.Type) {
			return
		}
		if seen = ev; event != nil {
			event(ev)
		}
	}
	defer func() { col.Event = event }()
	var away time.Time // since when nobody answers
	heard := func() int64 { return seen.TS }
	for last := heard(); ; {
		end, err := ask()
		if !lost(end, err) || ctx.Err() != nil {
			return end, err
		}
		if away.IsZero() || heard() != last {
			away, last = time.Now(), heard()
			l.Say("%v; job %s goes on if it was taken, waiting up to %s for a daemon that knows it",
				cmp.Or(err, errNoEnd), job, l.Patience)
		}
		_ = l.Close()
		col.restart()
		if time.Since(away) >= l.Patience {
			why := cmp.Or(err, errNoEnd)
			if !errors.Is(why, ErrNoDaemon) {
				why = fmt.Errorf("%w: %w", ErrNoDaemon, why)
			}
			return nil, fmt.Errorf("%w; once one is back, `patchbay watch %s` shows the job and `patchbay get %s` "+
				"fetches its files", why, job, job)
		}
		if err := wire.Pause(ctx, min(500*time.Millisecond, l.Patience)); err != nil {
			return nil, err
		}
	}
}

// errNoEnd is the error of a stream that ended in the middle.
var errNoEnd = errors.New("the daemon went away before the job ended")

// lost reports whether a stream of replies ended because its other side or a reply was lost, not because the request
// was answered.
func lost(end *message.Event, err error) bool {
	if err == nil {
		return end == nil
	}
	if failure, ok := errors.AsType[*fault.Error](err); ok {
		return failure.Public() == fault.Draining
	}
	var network net.Error
	return errors.Is(err, ErrNoDaemon) || errors.Is(err, ErrSilent) || errors.Is(err, errHungUp) ||
		errors.Is(err, errGap) || errors.Is(err, nats.ErrConnectionClosed) || errors.As(err, &network)
}
