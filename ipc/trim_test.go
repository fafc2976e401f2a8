package ipc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestResultsAreKeptUpToASize: the oldest results go first, their jobs still answer and say so, the newest stays, and so does a file that somebody has changed.
func TestResultsAreKeptUpToASize(t *testing.T) {
	out := t.TempDir()
	r := newRig(t, JobsConfig{KeepBytes: 2500}, ShelfConfig{Stage: filepath.Join(out, ".stage"), Output: out})
	c := dialRig(t, r)
	edited := filepath.Join(out, "fake_00002_.png")
	for i := range 5 {
		_, _, end := runJob(t, c, &RunRequest{ID: fmt.Sprint("r", i), Workflow: graph("Picture 1000")})
		if end.Type != EventSuccess {
			t.Fatalf("job %d: %+v", i, end)
		}
		if i == 1 {
			if err := os.WriteFile(edited, []byte("mine"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Millisecond) // the order of ends is by the millisecond
	}
	until(t, "three results are dropped", func() bool {
		rec, err := r.jobs.Get(context.Background(), "r2")
		return err == nil && rec.Dropped > 0
	})
	for i := range 5 {
		id, gone := fmt.Sprint("r", i), i < 3
		rec, err := Status(within(t, 5*time.Second), c, id)
		if err != nil || rec.State != Done || len(rec.Outputs) != 1 || (rec.Dropped > 0) != gone {
			t.Errorf("%s: got %+v, %v; want done, dropped %v", id, rec, err, gone)
		}
		files, err := Fetch(within(t, 5*time.Second), c, id)
		var e *Error
		if gone && (!errors.As(err, &e) || e.Code != ErrExpired) || !gone && (err != nil || len(files) != 1) {
			t.Errorf("%s: got %d files, %v; want them gone: %v", id, len(files), err, gone)
		}
		_, err = os.Stat(filepath.Join(out, fmt.Sprintf("fake_%05d_.png", i+1)))
		if want := !gone || i == 1; (err == nil) != want {
			t.Errorf("file of %s: %v, want it there: %v", id, err, want)
		}
	}
}

// until waits for something that comes soon, a minute on a slow or busy machine.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestResultsAreKeptForATime, also when the daemon ends between saying that they are dropped and dropping them.
func TestResultsAreKeptForATime(t *testing.T) {
	e := ledgerServer(t, false)
	out := t.TempDir()
	sc := ShelfConfig{Stage: filepath.Join(out, ".stage"), Output: out, Keep: true}
	ctx := within(t, 20*time.Second)
	j, end := durable(t, e, "a")
	shelf, err := NewShelf(sc)
	if err != nil {
		t.Fatal(err)
	}
	d := Dispatcher{Jobs: j, Shelf: shelf, Log: zerolog.Nop()}
	mustCreate(t, j, &RunRequest{ID: "p"})
	rec, _, _, err := j.Take(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	file := fileOf(fakePicture("1", 1000))
	if err := shelf.Stage("p", []File{file}); err != nil {
		t.Fatal(err)
	}
	d.finish(rec, &Outcome{Files: []File{file}}, nil)
	j.cfg.KeepResults = time.Hour
	if over := j.surplus(); len(over) != 0 {
		t.Errorf("%d results are too old at once", len(over))
	}
	j.cfg.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	over := j.surplus()
	if len(over) != 1 {
		t.Fatalf("%d results are too old after two hours, want 1", len(over))
	}
	if _, err := j.Update(ctx, "p", over[0].Rev, func(r *Record) { r.Dropped = 1 }); err != nil {
		t.Fatal(err)
	}
	end()
	name := filepath.Join(out, "fake_00001_.png")
	if _, err := os.Stat(name); err != nil {
		t.Fatal(err)
	}
	j, _ = durable(t, e, "a")
	if shelf, err = NewShelf(sc); err != nil {
		t.Fatal(err)
	}
	d = Dispatcher{Jobs: j, Shelf: shelf, Log: zerolog.Nop()}
	if err := d.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); err == nil {
		t.Error("the file is still there after the restart")
	}
	if rec, err := j.Get(ctx, "p"); err != nil || rec.State != Done || rec.Dropped == 0 {
		t.Errorf("got %+v, %v", rec, err)
	}
}
