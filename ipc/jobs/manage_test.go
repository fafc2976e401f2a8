package jobs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/tests/bubble"
)

// TestMovedJobs moves waiting jobs on one of two daemons: both know the new order, as does one that starts later, and a
// job that runs stays where it is.
func TestMovedJobs(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		a, _ := durable(t, e, "a")
		b, _ := durable(t, e, "b")
		for _, id := range []string{"j1", "j2", "j3", "j4", "j5"} {
			mustCreate(t, a, &message.RunRequest{ID: id, From: id})
			time.Sleep(time.Second)
		}
		for _, m := range []struct {
			job      string
			front    bool
			priority string
			want     []string
		}{
			{"j4", true, "", []string{"j4", "j1", "j2", "j3", "j5"}},
			{"j2", true, "", []string{"j2", "j4", "j1", "j3", "j5"}},
			{"j4", true, "", []string{"j4", "j2", "j1", "j3", "j5"}},
			{"j1", false, "low", []string{"j4", "j2", "j3", "j5", "j1"}},
			{"j5", false, "high", []string{"j4", "j2", "j5", "j3", "j1"}},
			{"j4", false, "normal", []string{"j2", "j5", "j3", "j4", "j1"}},
		} {
			if _, err := b.Move(t.Context(), m.job, m.front, m.priority); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			late, end := durable(t, e, "c")
			for name, j := range map[string]*Table{"a": a, "b": b, "c": late} {
				var got []string
				for _, r := range j.Select(func(r *message.Record, _ bool) bool { return r.State == message.Queued }) {
					got = append(got, r.Job)
				}
				if !slices.Equal(got, m.want) {
					t.Errorf("after %+v the order of %s is %v", m, name, got)
				}
			}
			end()
		}
		rec, _, _, err := a.Take(t.Context(), "w")
		if err != nil || rec.Job != "j2" {
			t.Fatalf("took %s, %v", rec.Job, err)
		}
		_, err = b.Move(t.Context(), "j2", true, "")
		if refused, ok := errors.AsType[*fault.Error](err); !ok || refused.Code != fault.BadRequest {
			t.Errorf("moving a job that runs: %v", err)
		}
	})
}

// TestPause checks that a paused table gives no job to its workers, also after a restart, and goes on where it was.
func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "paused")
		l := line{t, New(Config{PauseFile: file})}
		l.add("a", "", 1)
		for _, paused := range []bool{false, true, true, false, false, true} {
			if err := l.j.Pause(paused); err != nil || l.j.Paused() != paused {
				t.Fatalf("Pause(%v): %v, paused %v", paused, err, l.j.Paused())
			}
		}
		l.j = New(Config{PauseFile: file}) // as after a restart; jobs in memory are gone
		l.add("a", "", 2)
		taken := make(chan string, 1)
		go func() { taken <- l.take() }()
		time.Sleep(time.Hour)
		select {
		case id := <-taken:
			t.Fatalf("a paused table gave %s", id)
		default:
		}
		if err := l.j.Pause(false); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if id := <-taken; id != "a2" || time.Since(began) != 0 {
			t.Errorf("%s was taken %s after the pause", id, time.Since(began))
		}
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the pause would come back: %v", err)
		}
		if err := New(Config{PauseFile: filepath.Join(file, "no", "folder")}).Pause(true); err == nil {
			t.Error("a pause that cannot be kept is reported as one")
		}
	})
}

// TestDeletedFiles deletes the files of a job: those that are as the job made them go, its record stays.
func TestDeletedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outs, err := NewOutputs(OutputsConfig{Stage: filepath.Join(dir, "stage"), Output: filepath.Join(dir, "output")})
	if err != nil {
		t.Fatal(err)
	}
	j := New(Config{})
	d := &Dispatcher{Jobs: j, Outputs: outs}
	mustCreate(t, j, &message.RunRequest{ID: "a"})
	rec, _, _, err := j.Take(t.Context(), "w")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(why string, job string, code string) {
		t.Helper()
		_, err := j.Delete(t.Context(), outs, job)
		if got, ok := errors.AsType[*fault.Error](err); !ok || got.Code != code {
			t.Errorf("%s: %v, want %s", why, err, code)
		}
	}
	refused("a job that runs", "a", fault.BadRequest)
	var made []message.File
	for _, text := range []string{"first", "second"} {
		made = append(made, message.File{Data: []byte(text), Ref: message.OutputRef{
			Node: "9", Kind: "images", Type: "output", Prefix: "p", Ext: ".png", Bytes: len(text),
			CRC32C: message.Checksum([]byte(text)),
		}})
	}
	if err := outs.Stage("a", made); err != nil {
		t.Fatal(err)
	}
	d.finish(rec, &Outcome{Files: made}, nil, nil)
	names, err := filepath.Glob(filepath.Join(dir, "output", "*"))
	if err != nil || len(names) != 2 {
		t.Fatalf("the output folder has %v, %v", names, err)
	}
	if err := os.WriteFile(names[1], []byte("edited"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := j.Delete(t.Context(), outs, "a")
	if err != nil || out.Files != 1 || out.Bytes != 5 || out.State != message.Done {
		t.Fatalf("%v, %+v, want one file of 5 bytes", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "output", "*")); !slices.Equal(left, names[1:]) {
		t.Errorf("left are %v, want the file that was changed since", left)
	}
	if now, err := j.Get("a"); err != nil || now.State != message.Done || now.Dropped == 0 {
		t.Errorf("the record is %+v, %v", now, err)
	}
	if _, err := outs.Read("a", 0); err == nil {
		t.Error("a deleted file can be read")
	}
	refused("a job whose files are gone", "a", fault.Expired)
	if _, err := j.Delete(t.Context(), outs, "none"); !errors.Is(err, ErrNoJob) {
		t.Errorf("a job that is not there: %v", err)
	}
}
