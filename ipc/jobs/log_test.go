package jobs

import (
	"testing"

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
	if _, err := force(ctx, j, "p", rec.Rev, func(r *message.Record) {
		r.State, r.Error, r.Outputs = message.Failed, fault.New(fault.BadRequest, "no"), []message.OutputRef{{Node: "9"}}
	}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.do(ctx, "p", filesDropped{attemptOf(&rec)}); err != nil {
		t.Fatal(err)
	}
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
	if files, _ := log[len(log)-1].Data["outputs"].([]message.OutputRef); len(files) != 1 {
		t.Errorf("the log has lost the files: %v", log[len(log)-1].Data)
	}
}

// TestNothingFollowsAnEnd checks that events of a daemon that was cut off, which arrive behind the end that another one
// has made, are left out of the log, and that those of a retry are not.
func TestNothingFollowsAnEnd(t *testing.T) {
	t.Parallel()
	var log []message.Event
	for _, step := range []struct {
		kind     string
		attempt  int
		seq      uint64
		appended bool
	}{
		{message.EventQueued, 0, 1, true},
		{message.EventStart, 1, 2, true},
		{message.EventInterrupted, 1, 3, true},
		{message.EventProgress, 1, 4, false},
		{message.EventSuccess, 1, 5, false},
		{message.EventRetrying, 1, 4, true},
		{message.EventStart, 2, 5, true},
		{message.EventSuccess, 2, 6, true},
		{message.EventProgress, 1, 7, false},
		{message.EventProgress, 2, 7, false},
		{message.EventStart, 3, 8, true},
	} {
		var appended bool
		log, appended = followed(log, message.Event{Type: step.kind, Attempt: step.attempt, Seq: step.seq})
		if appended != step.appended {
			t.Errorf("%s %d of attempt %d is appended: %v", step.kind, step.seq, step.attempt, appended)
		}
	}
}
