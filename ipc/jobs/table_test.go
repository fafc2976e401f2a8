package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
)

// force changes the record of a job, if it is at rev, as no step would. Its log ends with it.
func force(ctx context.Context, j *Table, id string, rev uint64, f func(*message.Record)) (message.Record, error) {
	cur, err := j.Get(id)
	if err != nil {
		return cur, err
	}
	cur.Rev = rev
	next := cur.Clone()
	f(&next)
	then := effects{ends: next.State.Final() && next.EndSeq == 0}
	rec, err := j.write(ctx, cur, next, then)
	if err == nil {
		j.follow(ctx, rec, then)
	}
	return rec, err
}

// fail ends the attempt of a running job in failure.
func fail(ctx context.Context, j *Table, rec message.Record) error {
	end := ended{attempt: attemptOf(&rec), failure: fault.New(fault.Internal, "it was to fail")}
	_, _, err := j.do(ctx, rec.Job, end)
	return err
}

func TestWriteIsCompareAndSwap(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	j := New(Config{})
	rec, created, err := j.Create(ctx, &message.RunRequest{ID: "a"}, "h")
	if err != nil || !created {
		t.Fatal(err)
	}
	var wins atomic.Int32
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			_, err := force(ctx, j, "a", rec.Rev, func(r *message.Record) { r.State = message.Running; r.Attempt++ })
			switch {
			case err == nil:
				wins.Add(1)
			case !errors.Is(err, errConflict):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 1 {
		t.Errorf("got %d winners, want 1", wins.Load())
	}
	got, _ := j.Get("a")
	if got.Attempt != 1 || got.Rev != rec.Rev+1 {
		t.Errorf("got %+v", got)
	}
}

func TestTakeGivesEveryJobOnce(t *testing.T) {
	t.Parallel()
	j := New(Config{})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	const jobs = 200
	var mu sync.Mutex
	taken := map[string]int{}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for {
				rec, req, _, err := j.Take(ctx, fmt.Sprint("w", w))
				if err != nil {
					return
				}
				if rec.State != message.Running || rec.Attempt != 1 || req.ID != rec.Job {
					t.Errorf("took %+v", rec)
				}
				mu.Lock()
				taken[rec.Job]++
				if len(taken) == jobs {
					stop()
				}
				mu.Unlock()
			}
		})
	}
	for i := range jobs {
		if _, _, err := j.Create(ctx, &message.RunRequest{ID: fmt.Sprint("j", i)}, "h"); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	for id, n := range taken {
		if n != 1 {
			t.Errorf("%s was taken %d times", id, n)
		}
	}
}

func TestQueueOrder(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	j := New(Config{})
	for _, r := range []*message.RunRequest{{ID: "a"}, {ID: "b"}, {ID: "f", Front: true}} {
		if _, _, err := j.Create(ctx, r, "h"); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"f", "a", "b"} {
		if rec, _ := j.Get(want); rec.Position != i {
			t.Errorf("%s: got position %d, want %d", want, rec.Position, i)
		}
	}
	rec, _, _, err := j.Take(ctx, "w")
	if err != nil || rec.Job != "f" {
		t.Fatalf("took %s, %v", rec.Job, err)
	}
	// a retry goes first
	if _, err := force(ctx, j, "f", rec.Rev, func(r *message.Record) { r.State = message.Queued }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"f", "a", "b"} {
		rec, _, _, err := j.Take(ctx, "w")
		if err != nil || rec.Job != want {
			t.Errorf("took %s, %v, want %s", rec.Job, err, want)
		}
	}
}

func TestOneTerminalEventAndNoLateOnes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var seen []message.Event
	j := New(Config{OnEvent: func(e message.Event) { seen = append(seen, e) }})
	if _, _, err := j.Create(ctx, &message.RunRequest{ID: "a"}, "h"); err != nil {
		t.Fatal(err)
	}
	rec, _, _, err := j.Take(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	if !j.Append("a", 1, message.Event{Type: message.EventStart}) {
		t.Error("an event of the running attempt was dropped")
	}
	if j.Append("a", 2, message.Event{Type: message.EventProgress}) {
		t.Error("an event of an attempt that does not exist was taken")
	}
	if _, err := force(ctx, j, "a", rec.Rev, func(r *message.Record) { r.State = message.Done }); err != nil {
		t.Fatal(err)
	}
	if j.Append("a", 1, message.Event{Type: message.EventProgress}) {
		t.Error("progress of a job that is done was taken")
	}
	ends := 0
	for i, e := range seen {
		if message.Terminal(e.Type) {
			ends++
		}
		if e.Seq != uint64(i+1) {
			t.Errorf("event %d has number %d", i, e.Seq)
		}
	}
	if last := seen[len(seen)-1]; ends != 1 || last.Type != message.EventSuccess ||
		j.Append("a", -1, message.Event{Type: message.EventError}) {
		t.Errorf("there are %d terminal events, and the last event is %s", ends, last.Type)
	}
}

func TestLogIsBoundedAndCursorsSkipGaps(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	j := New(Config{})
	if _, _, err := j.Create(ctx, &message.RunRequest{ID: "a"}, "h"); err != nil {
		t.Fatal(err)
	}
	cur, err := j.Follow(ctx, "a", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	rec, _, _, err := j.Take(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * maxLog {
		j.Append("a", 1, message.Event{Type: message.EventProgress})
	}
	if _, _, err := j.do(ctx, "a", ended{attempt: attemptOf(&rec)}); err != nil {
		t.Fatal(err)
	}
	var last uint64
	var got []string
	for {
		it, err := cur.Next(ctx)
		if err != nil {
			break
		}
		if it.Event.Seq <= last {
			t.Fatalf("number %d after %d", it.Event.Seq, last)
		}
		last = it.Event.Seq
		got = append(got, it.Event.Type)
	}
	if len(got) > maxLog || got[0] != message.EventQueued || got[len(got)-1] != message.EventSuccess ||
		last != 3*maxLog+3 {
		t.Errorf("got %d events, first %s, last %s with number %d", len(got), got[0], got[len(got)-1], last)
	}
}

func TestForget(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var forgotten []string
	j := New(Config{Keep: 2, OnForget: func(id string) { forgotten = append(forgotten, id) }})
	for i := range 4 {
		id := fmt.Sprint(i)
		if _, _, err := j.Create(ctx, &message.RunRequest{ID: id}, "h"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := j.Cancel(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if len(forgotten) != 2 || forgotten[0] != "0" || forgotten[1] != "1" {
		t.Errorf("forgot %v, want [0 1]", forgotten)
	}
	j.Close()
	if _, _, err := j.Create(ctx, &message.RunRequest{ID: "x"}, "h"); !errors.Is(err, ErrClosed) {
		t.Errorf("create after close: %v", err)
	}
}

func TestExpireOnlyWaitingJobs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	now := time.Unix(1000, 0)
	j := New(Config{Now: func() time.Time { return now }})
	for _, id := range []string{"run", "wait"} {
		if _, _, err := j.Create(ctx, &message.RunRequest{ID: id, QueueTTLMS: 1000}, "h"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, _, err := j.Take(ctx, "w"); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second)
	j.Expire(ctx)
	for id, want := range map[string]message.State{"run": message.Running, "wait": message.Expired} {
		if rec, _ := j.Get(id); rec.State != want {
			t.Errorf("%s: got %s, want %s", id, rec.State, want)
		}
	}
}

// TestEndsAreRepublishedWithoutAListener checks that ends can be republished when no OnEvent is set.
func TestEndsAreRepublishedWithoutAListener(t *testing.T) {
	t.Parallel()
	ctx, now := context.Background(), time.Unix(1000, 0)
	j := New(Config{Now: func() time.Time { return now }})
	mustCreate(t, j, &message.RunRequest{ID: "a"})
	if _, _, err := j.Cancel(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	now = now.Add(settled)
	j.republish(ctx)
}

// endsOf makes a table on a clock that stands still, and lets a job end in every way in which a started job can end.
// Jobs that are not done have made a file too.
func endsOf(t *testing.T, now time.Time) (*Table, map[string]message.Event) {
	t.Helper()
	ends := map[string]message.Event{}
	j := New(Config{Now: func() time.Time { return now }, OnEvent: func(ev message.Event) {
		if message.Terminal(ev.Type) {
			ends[ev.Job] = ev
		}
	}})
	outputs, err := NewOutputs(OutputsConfig{Output: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	d := Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
	file := message.FileOf(messagetest.Picture("1", 1000))
	for id, failure := range map[string]*fault.Error{
		"done": nil, "failed": fault.New(fault.Internal, "x"), "cancelled": fault.New(fault.Cancelled, "x"),
	} {
		mustCreate(t, j, &message.RunRequest{ID: id})
		rec, _, _, err := j.Take(context.Background(), "w")
		if err != nil {
			t.Fatal(err)
		}
		if err := outputs.Stage(id, []message.File{file}); err != nil {
			t.Fatal(err)
		}
		d.finish(rec, &Outcome{Files: []message.File{file}}, failure, nil)
	}
	if _, err := j.Begin("sample", KindSample, "w"); err != nil {
		t.Fatal(err)
	}
	j.Finish(context.Background(), "sample", nil, nil)
	return j, ends
}

// TestEndsFollowTheTablesClock checks that records and events of ended jobs have the time that Config.Now returns.
func TestEndsFollowTheTablesClock(t *testing.T) {
	t.Parallel()
	j, ends := endsOf(t, time.UnixMilli(1000))
	for _, id := range []string{"done", "failed", "cancelled", "sample"} {
		rec, err := j.Get(id)
		if err != nil || rec.Finished != 1000 || ends[id].TS != 1000 || ends[id].Data["timestamp"] != int64(1000) {
			t.Errorf("%s at %d, its end at %d with timestamp %v, %v; want 1000", id, rec.Finished, ends[id].TS,
				ends[id].Data["timestamp"], err)
		}
	}
}

// TestUnfinishedJobsNameTheirFiles checks that the end of a failed or cancelled job lists the files of the nodes that
// had run, as long as they are kept.
func TestUnfinishedJobsNameTheirFiles(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	j, ends := endsOf(t, time.UnixMilli(1000))
	for _, id := range []string{"failed", "cancelled"} {
		refs, _ := ends[id].Data["outputs"].([]message.OutputRef)
		if len(refs) != 1 || refs[0].Filename == "" {
			t.Errorf("the end of the %s job names %+v, want one file", id, refs)
		}
		rec, err := j.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := force(ctx, j, id, rec.Rev, func(r *message.Record) { r.Dropped = 1 }); err != nil {
			t.Fatal(err)
		}
		cur, err := j.Follow(ctx, id, ends[id].Seq, false)
		if err != nil {
			t.Fatal(err)
		}
		it, err := cur.Next(ctx)
		if err != nil || it.Event.Type != ends[id].Type || it.Event.Data["outputs"] != nil {
			t.Errorf("the end of the %s job without its files: %+v, %v", id, it.Event, err)
		}
	}
}
