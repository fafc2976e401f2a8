package jobs

import (
	"errors"
	"testing"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// TestLostAnswers does every write of a job twice, as if the first one had been stored and its answer lost, and checks
// that the second one finds its own work.
func TestLostAnswers(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		l := storeOf(j)
		ctx := wiretest.Context(t)
		req := &message.RunRequest{ID: "twice", Workflow: "{}"}
		rec := j.fresh(req, "hash")
		first, created, err := l.create(ctx, rec, bodyOf(t, req))
		if err != nil || !created {
			t.Fatal(created, err)
		}
		if again, _, err := l.create(ctx, rec, bodyOf(t, req)); err != nil || again.Rev != first.Rev {
			t.Errorf("created once more: revision %d, %v; want %d", again.Rev, err, first.Rev)
		}
		next := first
		next.State, next.Attempt = message.Running, 1
		done, err := l.swap(ctx, next)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := l.swap(ctx, next); err != nil || again.Rev != done.Rev {
			t.Errorf("swapped once more: revision %d, %v; want %d", again.Rev, err, done.Rev)
		}
		other := first
		other.State, other.Attempt, other.Owner = message.Running, 1, "b"
		if _, err := l.swap(ctx, other); !errors.Is(err, errConflict) {
			t.Errorf("another change at the same revision: %v, want a conflict", err)
		}
	})
}

// TestCancelAtEveryState checks that cancel ends a waiting job at once, asks a running one to stop and leaves an ended
// one as it is. The id stays taken, and retry starts the job again in spite of the duplicate window.
func TestCancelAtEveryState(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		ctx := wiretest.Context(t)
		for _, c := range []struct {
			state message.State // that the job is put into
			after message.State
			did   bool
		}{
			{message.Queued, message.Cancelled, true},
			{message.Running, message.Running, true},
			{message.Done, message.Done, false},
			{message.Failed, message.Failed, false},
			{message.Cancelled, message.Cancelled, false},
			{message.Expired, message.Expired, false},
		} {
			id := "job-" + string(c.state)
			rec := mustCreate(t, j, &message.RunRequest{ID: id})
			if c.state == message.Running || c.state == message.Done {
				var err error
				for rec.Job = ""; rec.Job != id; { // references of cancelled jobs are dropped on the way
					if rec, _, _, err = j.Take(ctx, "w"); err != nil {
						t.Fatal(err)
					}
				}
			}
			if rec.State != c.state {
				if _, err := force(ctx, j, id, rec.Rev,
					func(r *message.Record) { r.State, r.Finished = c.state, time.Now().UnixMilli() }); err != nil {
					t.Fatal(err)
				}
			}
			after, did, err := j.Cancel(ctx, id)
			if err != nil || after != c.after || did != c.did {
				t.Errorf("cancel of a %s job: %s, %v, %v; want %s, %v", c.state, after, did, err, c.after, c.did)
			}
			if rec, err := j.Get(id); err != nil || rec.Cancel != (c.state == message.Running) {
				t.Errorf("cancel of a %s job: got %+v, %v", c.state, rec, err)
			}
		}
		old, created, err := j.Create(ctx, &message.RunRequest{ID: "job-queued"}, "hash")
		if err != nil || created || old.State != message.Cancelled {
			t.Errorf("a cancelled job sent again: %+v, %v, %v; want the job as it is", old, created, err)
		}
		if _, err := j.Retry(ctx, "job-queued"); err != nil {
			t.Fatal(err)
		}
		if rec, _, _, err := j.Take(ctx, "w"); err != nil || rec.Job != "job-queued" {
			t.Errorf("took %+v, %v; want the job that was retried", rec, err)
		}
	})
}

// TestQueueTimeIsForTheQueue checks that queue_ttl_ms does not end a job that began in time.
func TestQueueTimeIsForTheQueue(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		ctx := wiretest.Context(t)
		mustCreate(t, j, &message.RunRequest{ID: "late", QueueTTLMS: 60_000})
		if _, _, _, err := j.Take(ctx, "w"); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, j, &message.RunRequest{ID: "later", QueueTTLMS: 60_000})
		j.cfg.Now = func() time.Time { return time.Now().Add(time.Hour) }
		j.Expire(ctx)
		for id, want := range map[string]message.State{"late": message.Running, "later": message.Expired} {
			if rec, err := j.Get(id); err != nil || rec.State != want {
				t.Errorf("%s is %s, %v; want %s", id, rec.State, err, want)
			}
		}
	})
}

// TestHeartbeatsOutliveTheServer checks that a daemon's heartbeats and jobs go on after a restart of the server.
func TestHeartbeatsOutliveTheServer(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		e.Close()
		e.Start()
		ctx := wiretest.Context(t)
		for ; ; time.Sleep(10 * time.Millisecond) { // the connection is restored within a moment
			if err := storeOf(j).machines.Beat(ctx); err == nil {
				break
			} else if ctx.Err() != nil {
				t.Fatalf("a heartbeat after the restart: %v", err)
			}
		}
		mustCreate(t, j, &message.RunRequest{ID: "after"})
		if rec, _, _, err := j.Take(ctx, "w"); err != nil || rec.Job != "after" {
			t.Errorf("took %+v, %v", rec, err)
		}
	})
}
