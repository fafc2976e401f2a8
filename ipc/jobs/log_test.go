package jobs

import (
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
)

// TestFullLogKeepsItsFirstEvent checks that a log that is full of events that are no progress keeps the one that it
// begins with, whether the job runs here or at another daemon.
func TestFullLogKeepsItsFirstEvent(t *testing.T) {
	t.Parallel()
	here, there := New(Config{}), New(Config{})
	for _, j := range []*Table{here, there} {
		mustCreate(t, j, &message.RunRequest{ID: "p"})
	}
	for i := range 3 * maxLog {
		here.Append("p", -1, message.Event{Type: message.EventExecuted})
		there.Hear(message.Event{Type: message.EventExecuted, Job: "p", Seq: uint64(i + 2)})
	}
	for name, j := range map[string]*Table{"here": here, "there": there} {
		log := j.jobs["p"].log
		if first, last := log[0], log[len(log)-1]; first.Type != message.EventQueued || first.Seq != 1 ||
			last.Seq != 3*maxLog+1 || len(log) > maxLog {
			t.Errorf("%s: %d events, the first is %s, the last has number %d", name, len(log), first.Type, last.Seq)
		}
	}
}

// TestDroppedFilesStayInTheLog checks that a reader of the log of a failed job whose files were dropped is told of no
// files, and that the log itself keeps them: other daemons and the stream have them too.
func TestDroppedFilesStayInTheLog(t *testing.T) {
	t.Parallel()
	j, ctx := New(Config{}), wiretest.Context(t)
	mustCreate(t, j, &message.RunRequest{ID: "p"})
	rec, _, _, err := j.Take(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	cur, err := j.Follow(ctx, "p", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	if _, err := j.Update(ctx, "p", rec.Rev, func(r *message.Record) {
		r.State, r.Error, r.Dropped = message.Failed, fault.New(fault.BadRequest, "no"), 1
	}); err != nil {
		t.Fatal(err)
	}
	j.Append("p", -1, message.Event{Type: message.EventError, Data: map[string]any{"outputs": "files", "prompt_id": "p"}})
	for {
		it, err := cur.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !message.Terminal(it.Event.Type) {
			continue
		}
		if _, told := it.Event.Data["outputs"]; told || it.Event.Data["prompt_id"] != "p" {
			t.Errorf("the reader gets %v", it.Event.Data)
		}
		break
	}
	log := j.jobs["p"].log
	if log[len(log)-1].Data["outputs"] != "files" {
		t.Errorf("the log has lost the files: %v", log[len(log)-1].Data)
	}
}

// TestPauseBetweenAttempts checks that the pause doubles with every attempt that counts, to half a minute at most.
func TestPauseBetweenAttempts(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	j := New(Config{Store: &JetStream{}, Now: func() time.Time { return now }})
	for attempt, want := range map[int]time.Duration{
		1: 200 * time.Millisecond, 2: 400 * time.Millisecond, 4: 1600 * time.Millisecond, 8: 25600 * time.Millisecond,
		9: 30 * time.Second, 60: 30 * time.Second,
	} {
		rec := message.Record{Attempt: attempt + 7, Earlier: 5, HandedBack: 2}
		j.requeued(&rec, fault.New(fault.WorkerLost, "it died"), true)
		if got := time.UnixMilli(rec.NotBefore).Sub(now); got != want {
			t.Errorf("after attempt %d: %v, want %v", attempt, got, want)
		}
	}
}

// TestHandBacksAreNoAttempts follows records through the ends of their attempts. Three attempts (MaxAttempts) may lose
// their worker; those that a stopping daemon hands back neither count among them nor pause, but there are 20 at most.
func TestHandBacksAreNoAttempts(t *testing.T) {
	t.Parallel()
	j := New(Config{Store: &JetStream{}})
	for _, c := range []struct {
		name          string
		ends          []string // codes of the attempts' ends, repeated from the front
		attempts      int      // until the job fails
		counted, back int
	}{
		{"only lost", []string{fault.WorkerLost}, 3, 3, 0},
		{"only handed back", []string{fault.Draining}, 21, 1, 20},
		{"handed back between", []string{fault.Draining, fault.Draining, fault.WorkerLost}, 9, 3, 6},
		{"handed back after", []string{fault.WorkerLost, fault.WorkerLost, fault.Draining, fault.Draining}, 5, 3, 2},
	} {
		rec := message.Record{State: message.Running}
		for retry := true; retry; {
			code := c.ends[rec.Attempt%len(c.ends)]
			rec.Attempt++
			rec.NotBefore = 0
			failure := fault.New(code, "it ended")
			var counts bool
			if retry, counts = j.again(rec, failure); retry {
				j.requeued(&rec, failure, counts)
				if pauses := rec.NotBefore > 0; pauses != (code == fault.WorkerLost) {
					t.Errorf("%s: a pause after attempt %d, which ended with %s: %v", c.name, rec.Attempt, code, pauses)
				}
			}
			if rec.Attempt > 100 {
				break
			}
		}
		if rec.Attempt != c.attempts || rec.Counted() != c.counted || rec.HandedBack != c.back {
			t.Errorf("%s: %d attempts, of which %d count and %d were handed back; want %d, %d and %d", c.name, rec.Attempt,
				rec.Counted(), rec.HandedBack, c.attempts, c.counted, c.back)
		}
	}
}
