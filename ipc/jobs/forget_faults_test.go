package jobs

import (
	"context"
	"testing"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// failed creates a job that has failed.
func failed(t *testing.T, j *Table, id string) message.Record {
	t.Helper()
	ctx := wiretest.Context(t)
	mustCreate(t, j, &message.RunRequest{ID: id})
	rec, _, _, err := j.Take(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	_ = fail(ctx, j, rec)
	if rec, err = j.Get(id); err != nil || rec.State != message.Failed {
		t.Fatalf("%s is %s, %v", id, rec.State, err)
	}
	return rec
}

// TestRetryWhileForgotten checks that a job that is retried, here or by another daemon, while this one forgets it,
// runs: the retry was answered with a receipt.
func TestRetryWhileForgotten(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		a, _ := durable(t, e, "a")
		b, _ := durable(t, e, "b")
		ctx := wiretest.Context(t)
		forget := func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if len(a.ended) > 0 { // the watch may have reported the retry already: then there is nothing to forget
				a.forgetOldest()
			}
		}
		taken := func(what string) {
			t.Helper()
			a.mu.Lock()
			a.cfg.Now = func() time.Time { return time.Now().Add(time.Minute) }
			a.mu.Unlock()
			a.reconcile(ctx)
			rec, req, _, err := a.Take(ctx, "w")
			if err != nil || rec.Attempt != 2 || req == nil {
				t.Fatalf("%s: took %s in attempt %d, %v; want the job in attempt 2", what, rec.Job, rec.Attempt, err)
			}
		}
		failed(t, a, "elsewhere")
		for rec, _ := b.Get("elsewhere"); rec.State != message.Failed; rec, _ = b.Get("elsewhere") {
			time.Sleep(time.Millisecond)
		}
		forget()
		if _, err := b.Retry(ctx, "elsewhere"); err != nil {
			t.Fatal(err)
		}
		taken("retried by another daemon")

		failed(t, a, "here")
		real := storeOf(a)
		a.store = &between{JetStream: real, do: forget}
		_, err := a.Retry(ctx, "here")
		a.store = real
		if err != nil {
			t.Fatal(err)
		}
		taken("retried here")
	})
}

// between is a store that does something between a write and what follows it.
type between struct {
	*JetStream
	do func()
}

func (b *between) swap(ctx context.Context, rec message.Record) (message.Record, error) {
	rec, err := b.JetStream.swap(ctx, rec)
	b.do()
	return rec, err
}
