package wire

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// serverPatience is the timeout of one request to the server.
const serverPatience = 2 * time.Second

// Insist repeats an idempotent request until ctx ends if the request or its answer gets lost on the way.
func Insist[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	for {
		try, cancel := context.WithTimeout(ctx, serverPatience)
		out, err := request(try)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrReconnectBufExceeded) &&
			!errors.Is(err, nats.ErrDisconnected) {
			return out, err
		}
		_ = Pause(ctx, 50*time.Millisecond)
	}
}

// Update is a key of a bucket and its newest value.
type Update struct {
	Key      string
	Value    []byte // empty if it is gone, or if only Names were asked for
	Revision uint64
	Created  time.Time // when the server stored this revision
	Gone     bool      // it was deleted, or is too old
}

// Names makes Updates deliver keys without their values.
var Names = nats.HeadersOnly()

// Updates delivers the keys of a bucket and their changes, and nil after those that existed when it began. It ends, and
// the channel is closed, with ctx, and when the server ends it.
//
// It does what jetstream's KeyValue.WatchAll does, without keeping a lock while the server is asked: if the answer is
// lost after the first entry has arrived, that lock stops the clock of a bubble of testing/synctest for good.
func Updates(ctx context.Context, nc *nats.Conn, bucket string, opts ...nats.SubOpt) (<-chan *Update, error) {
	js, err := nc.JetStream()
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(ctx)
	messages := make(chan *nats.Msg, 256)
	opts = append(opts, nats.BindStream("KV_"+bucket), nats.OrderedConsumer(), nats.DeliverLastPerSubject(),
		nats.Context(ctx))
	sub, err := js.Subscribe("$KV."+bucket+".>", func(m *nats.Msg) {
		select {
		case messages <- m:
		case <-life.Done():
		}
	}, opts...)
	if err != nil {
		end()
		return nil, err
	}
	sub.SetClosedHandler(func(string) { end() })
	existing, err := sub.InitialConsumerPending()
	if err != nil || !sub.IsValid() {
		end()
		_ = sub.Unsubscribe()
		return nil, errors.Join(err, nats.ErrBadSubscription)
	}
	out := make(chan *Update)
	go func() {
		defer close(out)
		defer end()
		defer func() { _ = sub.Unsubscribe() }()
		deliver := func(e *Update) {
			select {
			case out <- e:
			case <-life.Done():
			}
		}
		if existing == 0 {
			deliver(nil)
		}
		for n := uint64(1); ; n++ {
			select {
			case <-life.Done():
				return
			case m := <-messages:
				meta, err := m.Metadata()
				if err != nil {
					return
				}
				deliver(&Update{
					Key: strings.TrimPrefix(m.Subject, "$KV."+bucket+"."), Value: m.Data, Revision: meta.Sequence.Stream,
					Created: meta.Timestamp,
					Gone:    m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != "",
				})
				if n <= existing && (n == existing || meta.NumPending == 0) {
					existing = 0
					deliver(nil)
				}
			}
		}
	}()
	return out, nil
}

// Watch follows a bucket, and starts again when the server ends the watch. Its methods are safe for concurrent use.
type Watch struct {
	// Heard is the highest revision that the watch has delivered.
	Heard atomic.Uint64
	again chan struct{} // holds a token if the watch must start again
}

// NewWatch returns a watch that has not started.
func NewWatch() *Watch { return &Watch{again: make(chan struct{}, 1)} }

// Again makes the watch start again: it delivers everything that is in the bucket.
func (w *Watch) Again() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// Start calls f with every entry of a bucket until life ends, from a goroutine that it hands to run, and with nil after
// those that existed when the watch started. It returns once the watch has started; ctx bounds that.
func (w *Watch) Start(ctx, life context.Context, nc *nats.Conn, bucket string, run func(func()),
	f func(*Update),
) error {
	this, end := context.WithCancel(life)
	entries, err := Insist(ctx, func(context.Context) (<-chan *Update, error) { return Updates(this, nc, bucket) })
	if err != nil {
		end()
		return err
	}
	run(func() {
		for {
			w.listen(life, entries, f)
			end()
			for first := true; first || err != nil; first = false {
				if Pause(life, 100*time.Millisecond) != nil {
					return
				}
				this, end = context.WithCancel(life)
				if entries, err = Updates(this, nc, bucket); err != nil {
					end()
				}
			}
		}
	})
	return nil
}

// listen calls f with entries until they end or the watch must start again.
func (w *Watch) listen(ctx context.Context, entries <-chan *Update, f func(*Update)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.again:
			return
		case e, ok := <-entries:
			if !ok {
				return
			}
			f(e)
			if e != nil && e.Revision > w.Heard.Load() {
				w.Heard.Store(e.Revision)
			}
		}
	}
}
