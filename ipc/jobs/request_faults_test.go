package jobs

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// shaky is a bucket whose next reads, left of them, fail.
type shaky struct {
	jetstream.KeyValue
	left atomic.Int32
	err  error
}

func (s *shaky) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	if s.left.Add(-1) >= 0 {
		return nil, s.err
	}
	return s.KeyValue.Get(ctx, key)
}

// TestRequestThatCannotBeReadNow checks that a job whose request cannot be fetched for a moment, or is not yet known to
// the server that was asked, runs in its first attempt, and that only a job whose request is gone fails.
func TestRequestThatCannotBeReadNow(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		a, _ := durable(t, e, "a")
		mustCreate(t, a, &message.RunRequest{ID: "short"})
		b, _ := durable(t, e, "b")
		bad := &shaky{KeyValue: storeOf(b).requests, err: nats.ErrTimeout}
		bad.left.Store(3)
		storeOf(b).requests = bad
		ctx := wiretest.Context(t)
		rec, req, _, err := b.Take(ctx, "w")
		if err != nil || rec.Job != "short" || rec.Attempt != 1 || rec.HandedBack != 0 || req.ID != "short" {
			t.Fatalf("took %+v, %v; want the job in its first attempt", rec, err)
		}
		if bad.left.Load() >= 0 {
			t.Fatal("the request was read without the bucket")
		}
		bad.err = jetstream.ErrKeyNotFound // from a server that lags behind the others
		bad.left.Store(1)
		mustCreate(t, a, &message.RunRequest{ID: "behind"})
		if rec, req, _, err := b.Take(ctx, "w"); err != nil || rec.Attempt != 1 || req.ID != "behind" {
			t.Fatalf("took %+v, %v; want the job whose request one server does not know yet", rec, err)
		}
		mustCreate(t, a, &message.RunRequest{ID: "gone"})
		if err := storeOf(a).purgePieces(ctx, "gone"); err != nil {
			t.Fatal(err)
		}
		take, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if rec, _, _, err := b.Take(take, "w"); err == nil {
				t.Errorf("took %s, whose request is gone", rec.Job)
			}
		}()
		for ctx.Err() == nil {
			if rec, err := b.Get("gone"); err == nil && rec.State == message.Failed {
				break
			}
			time.Sleep(time.Millisecond)
		}
		stop()
		<-done
		if rec, err := b.Get("gone"); err != nil || rec.State != message.Failed {
			t.Errorf("the job whose request is gone is %s, %v; want failed", rec.State, err)
		}
	})
}
