package wire

import (
	"context"
	"errors"
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
func (w *Watch) Start(ctx, life context.Context, kv jetstream.KeyValue, run func(func()),
	f func(jetstream.KeyValueEntry),
) error {
	watch, err := Insist(ctx, func(context.Context) (jetstream.KeyWatcher, error) { return kv.WatchAll(life) })
	if err != nil {
		return err
	}
	run(func() {
		for {
			w.listen(life, watch, f)
			_ = watch.Stop()
			for first := true; first || err != nil; first = false {
				if Pause(life, 100*time.Millisecond) != nil {
					return
				}
				watch, err = kv.WatchAll(life)
			}
		}
	})
	return nil
}

// listen calls f with the entries of a watch until it ends or must start again.
func (w *Watch) listen(ctx context.Context, watch jetstream.KeyWatcher, f func(jetstream.KeyValueEntry)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.again:
			return
		case e, ok := <-watch.Updates():
			if !ok {
				return
			}
			f(e)
			if e != nil && e.Revision() > w.Heard.Load() {
				w.Heard.Store(e.Revision())
			}
		}
	}
}
