package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// TestResultsAreKeptForATime checks that results are dropped after a time, also when the daemon ends between recording
// that and dropping them.
func TestResultsAreKeptForATime(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		out := t.TempDir()
		sc := OutputsConfig{Stage: filepath.Join(out, ".stage"), Output: out, Keep: true}
		ctx := wiretest.Context(t)
		j, end := durable(t, e, "a")
		outputs, err := NewOutputs(sc)
		if err != nil {
			t.Fatal(err)
		}
		d := Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
		mustCreate(t, j, &message.RunRequest{ID: "p"})
		rec, _, _, err := j.Take(ctx, "w")
		if err != nil {
			t.Fatal(err)
		}
		file := message.FileOf(messagetest.Picture("1", 1000))
		if err := outputs.Stage("p", []message.File{file}); err != nil {
			t.Fatal(err)
		}
		d.finish(rec, &Outcome{Files: []message.File{file}}, nil, nil)
		j.cfg.KeepResults = time.Hour
		if over := j.surplus(); len(over) != 0 {
			t.Errorf("%d results are too old at once", len(over))
		}
		j.cfg.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
		over := j.surplus()
		if len(over) != 1 {
			t.Fatalf("%d results are too old after two hours, want 1", len(over))
		}
		if _, err := force(ctx, j, "p", over[0].Rev, func(r *message.Record) { r.Dropped = 1 }); err != nil {
			t.Fatal(err)
		}
		end()
		name := filepath.Join(out, "fake_00001_.png")
		if _, err := os.Stat(name); err != nil {
			t.Fatal(err)
		}
		j, _ = durable(t, e, "a")
		if outputs, err = NewOutputs(sc); err != nil {
			t.Fatal(err)
		}
		d = Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
		if err := d.Recover(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(name); err == nil {
			t.Error("the file is still there after the restart")
		}
		if rec, err := j.Get("p"); err != nil || rec.State != message.Done || rec.Dropped == 0 {
			t.Errorf("got %+v, %v", rec, err)
		}
	})
}

// TestARetryHasFilesOfItsOwn checks that files dropped from the last attempt do not count as dropped in the next one.
func TestARetryHasFilesOfItsOwn(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		ctx := wiretest.Context(t)
		j, _ := durable(t, jetstreamServer(t, false), "a")
		mustCreate(t, j, &message.RunRequest{ID: "p"})
		rec, _, _, err := j.Take(ctx, "w")
		if err == nil {
			_, err = force(ctx, j, "p", rec.Rev, func(r *message.Record) {
				r.State, r.Outputs, r.Dropped = message.Failed, []message.OutputRef{{Node: "1"}}, 1
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		if rec, err := j.Retry(ctx, "p"); err != nil || len(rec.Outputs) != 0 || rec.Dropped != 0 {
			t.Errorf("got %d files, dropped at %d, %v; want neither", len(rec.Outputs), rec.Dropped, err)
		}
	})
}

// TestRestartLongAfterTheEnd checks that a daemon that starts when the stream has dropped the events of a job as too
// old leaves the job alone: its end is not told again, its record keeps its revision, and its age counts from its end,
// also when its files are dropped meanwhile.
func TestRestartLongAfterTheEnd(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		ctx := wiretest.Context(t)
		outputs, err := NewOutputs(OutputsConfig{})
		if err != nil {
			t.Fatal(err)
		}
		j, end := durable(t, e, "a")
		for _, id := range []string{"told", "untold", "lost"} {
			j.cfg.Now = func() time.Time { return time.Now().Add(-25 * time.Hour) }
			if id == "lost" {
				j.cfg.Now = time.Now
			}
			mustCreate(t, j, &message.RunRequest{ID: id})
			rec, _, _, err := j.Take(ctx, "w")
			if err != nil {
				t.Fatal(err)
			}
			(&Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}).finish(rec, &Outcome{}, nil, nil)
		}
		mustCreate(t, j, &message.RunRequest{ID: "later"})
		end()
		// the stream forgets by age all that "told" had; as by a power failure, the end of "untold" and all of "lost"
		l, err := OpenJetStream(ctx, JetStreamConfig{URL: e.URL, InProcess: e, Owner: "other", Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, subject := range []string{
			message.EventSubject("told", "*"), message.EventSubject("untold", message.EventSuccess),
			message.EventSubject("lost", "*"),
		} {
			if err := l.events.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
				t.Fatal(err)
			}
		}
		j, end = durable(t, e, "a")
		before, err := j.Get("told")
		if err != nil {
			t.Fatal(err)
		}
		if err := (&Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}).Recover(ctx); err != nil {
			t.Fatal(err)
		}
		if rec, err := j.Get("told"); err != nil || rec.Rev != before.Rev {
			t.Errorf("the record was written again: revision %d after %d, %v", rec.Rev, before.Rev, err)
		}
		told := map[string]int{}
		j.cfg.OnEvent = func(ev message.Event) { told[ev.Job+" "+ev.Type]++ }
		j.cfg.Now = func() time.Time { return time.Now().Add(2 * settled) }
		j.republish(ctx)
		if want := map[string]int{"untold execution_success": 1, "lost execution_success": 1}; !maps.Equal(told, want) {
			t.Errorf("told are %v, want the ends that nobody has heard: %v", told, want)
		}
		if _, err := force(ctx, j, "told", before.Rev, func(r *message.Record) { r.Dropped = 1 }); err != nil {
			t.Fatal(err)
		}
		j.cfg.KeepFor = 24 * time.Hour
		j.sweep(time.Now())
		if _, err := j.Get("told"); !errors.Is(err, ErrNoJob) {
			t.Errorf("a job that ended 25 hours ago is kept for 24: %v", err)
		}
		end() // publishes what waits, in order
		if info, err := l.events.Info(ctx, jetstream.WithSubjectFilter(message.EventSubject("told", "*"))); err != nil ||
			len(info.State.Subjects) > 0 {
			t.Errorf("events that were told a day ago are told again: %v, %v", info.State.Subjects, err)
		}
	})
}

// TestRetriedOften checks that a job that was retried by hand more often than a daemon may be lost outlives a restart
// of its daemon, and still has all the attempts that a new job has.
func TestRetriedOften(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		ctx := wiretest.Context(t)
		outputs, err := NewOutputs(OutputsConfig{})
		if err != nil {
			t.Fatal(err)
		}
		j, end := durable(t, e, "a")
		repairs, stop := context.WithCancel(ctx)
		defer stop()
		go j.Reconcile(repairs) // a retry may come before the reference of the last attempt is gone
		mustCreate(t, j, &message.RunRequest{ID: "p"})
		const retries = maxHandedBack + 5
		for range retries {
			rec, _, _, err := j.Take(ctx, "w")
			if err != nil {
				t.Fatal(err)
			}
			(&Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}).finish(rec, nil, fault.New(fault.BadRequest, "no"), nil)
			if _, err := j.Retry(ctx, "p"); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, _, err := j.Take(ctx, "w"); err != nil {
			t.Fatal(err)
		}
		stop()
		end()
		j, _ = durable(t, e, "a")
		if err := (&Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}).Recover(ctx); err != nil {
			t.Fatal(err)
		}
		rec, err := j.Get("p")
		if err != nil || rec.State != message.Queued || rec.Attempt != retries+1 || rec.Counted() != 0 {
			t.Errorf("after the restart the job is %s in attempt %d, of which %d count, %v", rec.State, rec.Attempt,
				rec.Counted(), err)
		}
	})
}

// TestListOfMany checks that a list shows the newest jobs and their places in the queue.
func TestListOfMany(t *testing.T) {
	t.Parallel()
	j := New(Config{MaxQueued: 100})
	created := time.UnixMilli(1_000_000)
	j.cfg.Now = func() time.Time { created = created.Add(time.Millisecond); return created }
	for i := range 20 {
		mustCreate(t, j, &message.RunRequest{ID: fmt.Sprintf("p%02d", i)})
	}
	list, counts := j.List(message.Queued, 3)
	for i, rec := range list {
		if want := 19 - i; rec.Job != fmt.Sprintf("p%02d", want) || rec.Position != want {
			t.Errorf("%d is %s at place %d of the queue, want p%02d at %d", i, rec.Job, rec.Position, want, want)
		}
	}
	if len(list) != 3 || counts[message.Queued] != 20 {
		t.Errorf("%d jobs are listed of %v", len(list), counts)
	}
}

// BenchmarkList lists 10 of 10,000 waiting jobs.
func BenchmarkList(b *testing.B) {
	j := New(Config{MaxQueued: 20_000})
	for i := range 10_000 {
		mustCreate(b, j, &message.RunRequest{ID: fmt.Sprint("p", i)})
	}
	for b.Loop() {
		j.List("", 10)
	}
}
