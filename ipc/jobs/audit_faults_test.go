package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// TestConflictsWhereThereAreCopies checks that both error codes of a refused swap, that of a stream with replicas and
// that of one without, mean a conflict, and not a record that the server will never take.
func TestConflictsWhereThereAreCopies(t *testing.T) {
	t.Parallel()
	for _, code := range []jetstream.ErrorCode{10071, 10164} {
		err := fmt.Errorf("write: %w", &jetstream.APIError{Code: 400, ErrorCode: code})
		if !isConflict(err) || refused(err) {
			t.Errorf("%d: conflict %v, refused %v", code, isConflict(err), refused(err))
		}
	}
	if err := (&jetstream.APIError{Code: 400, ErrorCode: 10054}); isConflict(err) || !refused(err) {
		t.Error("a message that is too long is not refused")
	}
}

// TestSwapAtAServerBehind checks that a swap is not refused for good by a server that lags behind the revision it
// expects, as long as the table expects it too: if not, it was lost, and the swap can never succeed.
func TestSwapAtAServerBehind(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		rec := mustCreate(t, j, &message.RunRequest{ID: "p"})
		rec.Rev += 100
		if _, err := storeOf(j).swap(context.Background(), rec); !errors.Is(err, errConflict) {
			t.Errorf("at a revision that is gone: got %v, want a conflict", err)
		}
		j.observe(rec)
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		if _, err := storeOf(j).swap(ctx, rec); err == nil || errors.Is(err, errConflict) {
			t.Errorf("got %v, want another try until time is up", err)
		}
		rec.Rev, rec.State = rec.Rev-101, message.Running
		if _, err := storeOf(j).swap(context.Background(), rec); !errors.Is(err, errConflict) {
			t.Errorf("got %v, want a conflict", err)
		}
	})
}

// TestLostRecordsAreWrittenAgain checks a server that loses acknowledged records, as after a power failure: one of them
// or all from some point on, also with older revisions in their place and new records under their revision numbers, or
// with the events lost too. The daemon that remembers them reports the loss and writes them again. What was dropped on
// purpose stays away, and jobs go on.
func TestLostRecordsAreWrittenAgain(t *testing.T) {
	for _, how := range []string{"one", "all", "overtaken", "all and events", "overtaken and events"} {
		bubble.Part(t, how, func(t *testing.T) {
			e := jetstreamServer(t, false)
			j, _ := durable(t, e, "a")
			l, ctx := storeOf(j), wiretest.Context(t)
			for _, id := range []string{"waits", "done", "dropped"} {
				mustCreate(t, j, &message.RunRequest{ID: id})
			}
			for _, id := range []string{"done", "dropped"} {
				rec, _, _, err := j.takeThis(ctx, id, "w")
				if err == nil {
					_, err = force(ctx, j, id, rec.Rev, func(r *message.Record) { r.State, r.Finished = message.Done, 1 })
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			eventually(ctx, t, "the events are there", func() bool {
				ev, err := l.last(ctx, "done", message.EventSuccess)
				return err == nil && ev != nil
			})
			dropped, err := j.Get("dropped")
			was := dropped
			if err == nil {
				err = l.drop(ctx, &dropped)
			}
			if err != nil {
				t.Fatal(err)
			}
			deaf, err := OpenJetStream(ctx, JetStreamConfig{URL: e.URL, InProcess: e, Owner: "deaf", Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			defer deaf.Close()
			if err := deaf.restore(ctx, was, time.Now()); err != nil {
				t.Error(err)
			}
			if _, err := l.get(ctx, "dropped"); !errors.Is(err, ErrNoJob) {
				t.Errorf("a daemon that has not heard of it writes a job that was dropped again: %v", err)
			}
			eventually(ctx, t, "it is heard that a job was dropped", func() bool { return !j.knows("dropped") })
			lose(ctx, t, l, how)
			eventually(ctx, t, "the records are back", func() bool {
				waits, err := l.get(ctx, "waits")
				done, err2 := l.get(ctx, "done")
				return err == nil && err2 == nil && waits.State == message.Queued && done.State == message.Done
			})
			if _, err := l.get(ctx, "dropped"); !errors.Is(err, ErrNoJob) {
				t.Errorf("a job that was dropped is there again: %v", err)
			}
			eventually(ctx, t, "they are counted", func() bool { return l.Space().Restored == 2 })
			other, _ := durable(t, e, "b")
			mustCreate(t, other, &message.RunRequest{ID: "later"})
			eventually(ctx, t, "jobs of others are heard of", func() bool { return j.knows("later") })
			rec, _, _, err := j.takeThis(ctx, "waits", "w")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := force(ctx, j, "waits", rec.Rev, func(r *message.Record) { r.State = message.Done }); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSwapOfALostRecord checks a job that ends while the server has an older record of it than it had acknowledged. The
// record is written again under another revision, and the end goes on from there, as does every swap in progress.
func TestSwapOfALostRecord(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		l, ctx := storeOf(j), wiretest.Context(t)
		mustCreate(t, j, &message.RunRequest{ID: "p"})
		older, err := l.get(ctx, "p")
		if err != nil {
			t.Fatal(err)
		}
		rec, _, _, err := j.takeThis(ctx, "p", "w")
		for range 3 { // so that the record written again has a lower revision
			if err == nil {
				rec, err = force(ctx, j, "p", rec.Rev, func(r *message.Record) { r.Started++ })
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		value, err := encodeRecord(older)
		config := l.recordStream.CachedInfo().Config
		err = errors.Join(err, l.js.DeleteStream(ctx, config.Name))
		_, failed := l.js.CreateStream(ctx, config)
		_, put := l.js.Publish(ctx, "$KV."+message.JobBucket+".p", value)
		if err = errors.Join(err, failed, put); err != nil {
			t.Fatal(err)
		}
		l.Returned()
		lost := rec
		_, _, err = j.do(ctx, "p", ended{attempt: attemptOf(&rec)})
		if err != nil {
			t.Fatal(err)
		}
		if rec, err = l.get(ctx, "p"); err != nil || rec.State != message.Done || rec.Attempt != 1 {
			t.Errorf("the job is %s in attempt %d, %v", rec.State, rec.Attempt, err)
		}
		if _, err := l.swap(ctx, lost); !errors.Is(err, errConflict) {
			t.Errorf("another swap of the lost record: got %v, want that it has changed since", err)
		}
	})
}

// TestEndsAreAskedOfTheLeader checks that only the leader is asked whether the end of a job is told: any other
// server may lag behind, or have what the others have lost.
func TestEndsAreAskedOfTheLeader(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		l, ctx := storeOf(j), wiretest.Context(t)
		direct, err := l.nc.SubscribeSync("$JS.API.DIRECT.GET." + message.EventStream + ".>")
		if err != nil {
			t.Fatal(err)
		}
		rec := mustCreate(t, j, &message.RunRequest{ID: "p"})
		rec.State = message.Done
		if number, err := l.told(ctx, rec); number > 0 || err != nil {
			t.Errorf("a job that waits has ended: %d, %v", number, err)
		}
		rec, err = force(ctx, j, "p", rec.Rev, func(r *message.Record) { r.State, r.Finished = message.Done, 1 })
		if err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the end is told", func() bool {
			number, err := l.told(ctx, rec)
			return number == rec.EndSeq && err == nil
		})
		if m, err := direct.NextMsg(50 * time.Millisecond); err == nil {
			t.Errorf("any server is asked: %s", m.Subject)
		}
	})
}

// TestCopiesOfALoneServer checks that more than one copy is refused on a server that is not in a cluster.
func TestCopiesOfALoneServer(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		_, err := OpenJetStream(context.Background(), JetStreamConfig{URL: e.URL, InProcess: e, Owner: "a", Replicas: 3})
		if err == nil || !strings.Contains(err.Error(), "--replicas 3: the NATS server at") {
			t.Errorf("got %v, want a refusal that names the option and the server", err)
		}
	})
}

// lose removes the records of two jobs from the store, or all records with their revision numbers. If overtaken, others
// get numbers beyond the lost ones, and an older record of one job is restored unless the events are lost too.
func lose(ctx context.Context, t *testing.T, l *JetStream, how string) {
	t.Helper()
	subject := func(id string) string { return "$KV." + message.JobBucket + "." + id }
	old, err := l.get(ctx, "done")
	last := l.records.Heard.Load()
	if how == "one" {
		for _, id := range []string{"waits", "done"} {
			err = errors.Join(err, l.recordStream.Purge(ctx, jetstream.WithPurgeSubject(subject(id))))
		}
	} else {
		config := l.recordStream.CachedInfo().Config
		err = errors.Join(err, l.js.DeleteStream(ctx, config.Name))
		_, failed := l.js.CreateStream(ctx, config)
		err = errors.Join(err, failed)
	}
	rest, events := strings.CutSuffix(how, " and events")
	if events {
		err = errors.Join(err, l.events.Purge(ctx))
	}
	if rest == "overtaken" {
		old.State = message.Running
		first, failed := encodeRecord(old)
		err = errors.Join(err, failed)
		if !events {
			err = errors.Join(err, l.nc.Publish(subject("done"), first))
		}
		for ; err == nil && last > 0; last-- {
			id := fmt.Sprint("filler", last)
			filler, failed := encodeRecord(message.Record{V: old.V, Job: id, State: message.Done, Attempt: 1, Owner: "b"})
			err = errors.Join(failed, l.nc.Publish(subject(id), filler))
		}
		err = errors.Join(err, l.nc.Flush())
	}
	l.Returned() // as after a restart of the server
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(ctx context.Context, t *testing.T, what string, done func() bool) {
	t.Helper()
	for !done() {
		if ctx.Err() != nil {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
