package jobs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// typesOf follows a job to its end and returns the types of its events.
func typesOf(t *testing.T, j *Table, id string) (out []string) {
	t.Helper()
	ctx := wiretest.Context(t)
	cur, err := j.Follow(ctx, id, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	for {
		it, err := cur.Next(ctx)
		if errors.Is(err, ErrEnd) {
			return out
		}
		if err != nil {
			t.Fatalf("after %v: %v", out, err)
		}
		out = append(out, it.Event.Type)
	}
}

// TestTheRecordEndsTheLog checks that a daemon takes the end of a log from the record alone, whatever else it hears of
// it before and after, that it does not tell that end itself, and that the log goes on with a retry.
func TestTheRecordEndsTheLog(t *testing.T) {
	t.Parallel()
	j := New(Config{Owner: "b", OnEvent: func(ev message.Event) {
		t.Errorf("told by a daemon that only follows: %+v", ev)
	}})
	hear := func(kind string, attempt int, seq uint64) {
		j.Hear(message.Event{Type: kind, Job: "p", Attempt: attempt, Seq: seq})
	}
	rec := message.Record{Job: "p", State: message.Running, Owner: "a", Attempt: 1, Started: 1, Rev: 1}
	j.observe(rec)
	j.jobs["p"].cold = false // there is no stream
	hear(message.EventQueued, 0, 1)
	hear(message.EventStart, 1, 2)
	hear(message.EventSuccess, 1, 3)
	if e := j.jobs["p"]; len(e.log) != 2 || len(j.ended) > 0 {
		t.Errorf("an end without a record: %+v", e.log)
	}
	hear(message.EventProgress, 1, 3)
	hear(message.EventProgress, 1, 4) // of a run that went on for a moment
	rec.State, rec.Finished, rec.Error, rec.EndSeq, rec.Rev = message.Cancelled, 7, Cancelled(), 5, 2
	j.observe(rec)
	hear(message.EventProgress, 1, 6)
	hear(message.EventRetrying, 1, 6)
	hear(message.EventStart, 2, 7)
	hear(message.EventSuccess, 1, 8)
	want := []string{
		message.EventQueued, message.EventStart, message.EventProgress, message.EventExecuting, message.EventInterrupted,
	}
	if got := typesOf(t, j, "p"); !slices.Equal(got, want) {
		t.Errorf("a reader gets %v, want %v", got, want)
	}
	rec.State, rec.Finished, rec.Error, rec.EndSeq, rec.Rev = message.Queued, 0, nil, 0, 3
	j.observe(rec)
	hear(message.EventRetrying, 1, 6)
	hear(message.EventStart, 2, 7)
	rec.State, rec.Finished, rec.Attempt, rec.EndSeq, rec.Rev = message.Done, 9, 2, 9, 4
	j.observe(rec)
	want = append(want, message.EventRetrying, message.EventStart, message.EventExecuting, message.EventSuccess)
	if got := typesOf(t, j, "p"); !slices.Equal(got, want) {
		t.Errorf("after a retry a reader gets %v, want %v", got, want)
	}
	if n := len(j.ended); n != 1 {
		t.Errorf("the table counts %d ended jobs, want 1", n)
	}
}

// published is a store whose stream has events before their record.
type published struct {
	memory
	events []message.Event
}

func (p *published) log(context.Context, string) ([]message.Event, error) { return p.events, nil }

// TestTheRecordEndsALogThatIsRead checks that a daemon which reads the log of a job from the stream, and finds an end
// there that its record does not have yet, shows it to readers only when the record has it: they may ask for the
// record.
func TestTheRecordEndsALogThatIsRead(t *testing.T) {
	t.Parallel()
	s := &published{}
	for i, kind := range []string{message.EventQueued, message.EventStart, message.EventExecuting, message.EventSuccess} {
		s.events = append(s.events, message.Event{Type: kind, Job: "p", Attempt: min(i, 1), Seq: uint64(i + 1)})
	}
	j, ctx := New(Config{Owner: "b", Store: s}), wiretest.Context(t)
	rec := message.Record{Job: "p", State: message.Running, Owner: "a", Attempt: 1, Started: 1, Rev: 1}
	j.observe(rec)
	log, _, err := j.Log(ctx, "p")
	if err != nil || len(log) != 3 || log[2].Type != message.EventExecuting {
		t.Fatalf("before the record ends readers get %+v, %v", log, err)
	}
	rec.State, rec.Finished, rec.EndSeq, rec.Rev = message.Done, 7, 4, 2
	j.observe(rec)
	want := []string{message.EventQueued, message.EventStart, message.EventExecuting, message.EventSuccess}
	if got := typesOf(t, j, "p"); !slices.Equal(got, want) {
		t.Errorf("a reader gets %v, want %v", got, want)
	}
}

// TestAnotherEndOfTheSameNumber checks the log of a job whose end the store has lost, which then ran at another daemon
// and ended again, with as many events: readers get the end that the record has now.
func TestAnotherEndOfTheSameNumber(t *testing.T) {
	t.Parallel()
	j, ctx := New(Config{Owner: "a"}), wiretest.Context(t)
	mustCreate(t, j, &message.RunRequest{ID: "p"})
	rec, _, _, err := j.Take(ctx, "w")
	if err == nil {
		rec, err = force(ctx, j, "p", rec.Rev, func(r *message.Record) { r.State, r.Finished = message.Done, 1000 })
	}
	if err != nil {
		t.Fatal(err)
	}
	typesOf(t, j, "p")
	rec.Rev, rec.Owner, rec.Finished = rec.Rev+1, "b", 2000
	j.observe(rec)
	cur, err := j.Follow(ctx, "p", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	var last message.Event
	for it, err := cur.Next(ctx); !errors.Is(err, ErrEnd); it, err = cur.Next(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		last = *it.Event
	}
	if last.Type != message.EventSuccess || last.TS != 2000 || last.Seq != rec.EndSeq {
		t.Errorf("the log ends with %+v, the record with number %d at %d", last, rec.EndSeq, rec.Finished)
	}
	if n := len(j.ended); n != 1 {
		t.Errorf("the table counts %d ended jobs, want 1", n)
	}
}

// TestEndsOfAnEarlierVersion opens a store whose records do not say where logs end. An end that was told is not told
// again, also if it was told by a daemon that is gone; one that was not is told.
func TestEndsOfAnEarlierVersion(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		ctx := wiretest.Context(t)
		a, end := durable(t, e, "a")
		for _, id := range []string{"told", "untold", "failed"} {
			mustCreate(t, a, &message.RunRequest{ID: id})
			rec, _, _, err := a.Take(ctx, "w")
			if err != nil {
				t.Fatal(err)
			}
			a.Append(id, 1, message.Event{Type: message.EventStart})
			rec.State, rec.Finished = message.Done, time.Now().UnixMilli()
			if id == "failed" {
				rec.State, rec.Error = message.Failed, fault.New(fault.Internal, "it was to fail")
			}
			if rec, err = storeOf(a).swap(ctx, rec); err != nil {
				t.Fatal(err)
			}
			if id != "untold" {
				ev := terminalOf(rec)
				ev.V, ev.Job, ev.Seq, ev.TS, ev.Attempt = message.ProtocolVersion, id, 3, rec.Finished, 1
				a.cfg.OnEvent(ev)
				eventually(ctx, t, "the end is in the stream", func() bool {
					number, err := storeOf(a).told(ctx, rec)
					return number == 3 && err == nil
				})
			}
		}
		end()
		a, _ = durable(t, e, "a")
		outputs, err := NewOutputs(OutputsConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if err := (&Dispatcher{Jobs: a, Outputs: outputs, Log: zerolog.Nop()}).Recover(ctx); err != nil {
			t.Fatal(err)
		}
		a.cfg.Now = func() time.Time { return time.Now().Add(2 * settled) }
		a.republish(ctx)
		for id, want := range map[string]struct {
			seq uint64
			end string
		}{"told": {3, message.EventSuccess}, "untold": {4, message.EventSuccess}, "failed": {3, message.EventError}} {
			rec, err := a.Get(id)
			if err != nil || rec.EndSeq != want.seq {
				t.Errorf("the log of %s ends with %d, %v; want %d", id, rec.EndSeq, err, want.seq)
			}
			eventually(ctx, t, "the end is told, of "+id, func() bool {
				number, err := storeOf(a).told(ctx, rec)
				return number > 0 && err == nil
			})
			if got := typesOf(t, a, id); got[len(got)-1] != want.end {
				t.Errorf("a reader of %s gets %v", id, got)
			}
			checkTerminal(t, e, id, want.end)
		}
	})
}
