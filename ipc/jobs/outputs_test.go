package jobs

import (
	"context"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// TestNamesThatWereNotRecorded ends a daemon twice between the moments when a file gets its name and when the record
// has it, the second time after it had looked for what the first had left. There is one file, and its name is found
// again.
func TestNamesThatWereNotRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := OutputsConfig{Stage: filepath.Join(dir, "stage"), Output: filepath.Join(dir, "output"), Keep: true}
	ref := message.OutputRef{
		Node: "9", Kind: "images", Type: "output", Prefix: "p", Ext: ".png", Bytes: 7,
		CRC32C: crc32.Checksum([]byte("picture"), crc32.MakeTable(crc32.Castagnoli)),
	}
	for process := range 3 {
		s, err := NewOutputs(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if process == 0 {
			err = s.Stage("job", []message.File{{Ref: ref, Data: []byte("picture")}})
		} else {
			s.Adopt("job", []message.OutputRef{ref})
		}
		if err != nil {
			t.Fatal(err)
		}
		refs, err := s.Commit("job")
		if err != nil || refs[0].Filename != "p_00001_.png" {
			t.Fatalf("process %d: the file is %+v, %v", process, refs, err)
		}
		s.Sweep()
		if process < 2 {
			continue
		}
		s.Clean("job")
		if left, err := os.ReadDir(cfg.Stage); err != nil || len(left) != 0 {
			t.Errorf("once its name is recorded, %v is left in the stage, %v", left, err)
		}
		if b, err := s.Read("job", 0); err != nil || string(b) != "picture" {
			t.Errorf("the file holds %q, %v", b, err)
		}
	}
	if files, err := os.ReadDir(cfg.Output); err != nil || len(files) != 1 {
		t.Errorf("the output folder has %v, %v", files, err)
	}
}

// TestFilesAreReadMeanwhile reads a file of a job while its copies in the stage are removed: the race detector is the
// judge.
func TestFilesAreReadMeanwhile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := NewOutputs(OutputsConfig{Stage: filepath.Join(dir, "stage"), Output: filepath.Join(dir, "output")})
	if err != nil {
		t.Fatal(err)
	}
	ref := message.OutputRef{
		Node: "9", Kind: "images", Type: "output", Prefix: "p", Ext: ".png", Bytes: 7,
		CRC32C: message.Checksum([]byte("picture")),
	}
	if err := s.Stage("job", []message.File{{Ref: ref, Data: []byte("picture")}}); err != nil {
		t.Fatal(err)
	}
	var reads sync.WaitGroup
	read := func() {
		if b, err := s.Read("job", 0); err != nil || string(b) != "picture" {
			t.Errorf("the file holds %q, %v", b, err)
		}
	}
	reads.Go(read)
	if _, err := s.Commit("job"); err != nil {
		t.Error(err)
	}
	reads.Go(read)
	s.Clean("job")
	reads.Wait()
	read()
}

// TestFilesOfAttemptsThatDidNotEnd kills a daemon while an attempt has given files their names and its job has not
// ended. The next attempt finds them: the same content has the same name, other content takes its place, and of a job
// that ends elsewhere nothing is left. A file that somebody has changed by then is theirs.
func TestFilesOfAttemptsThatDidNotEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := OutputsConfig{Stage: filepath.Join(dir, "stage"), Output: filepath.Join(dir, "output"), Keep: true}
	files := func(contents ...string) (out []message.File) {
		for _, c := range contents {
			out = append(out, message.File{Data: []byte(c), Ref: message.OutputRef{
				Node: "9", Kind: "images", Type: "output", Prefix: "p", Ext: ".png", Bytes: len(c),
				CRC32C: message.Checksum([]byte(c)),
			}})
		}
		return out
	}
	start := func() *Outputs {
		s, err := NewOutputs(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.Sweep()
		return s
	}
	made := func(s *Outputs, contents ...string) (names []string) {
		if err := s.Stage("job", files(contents...)); err != nil {
			t.Fatal(err)
		}
		refs, err := s.Commit("job")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range refs {
			names = append(names, r.Filename)
		}
		return names
	}
	there := func(want ...string) {
		t.Helper()
		var got []string
		entries, err := os.ReadDir(cfg.Output)
		for _, e := range entries {
			b, _ := os.ReadFile(filepath.Join(cfg.Output, e.Name()))
			got = append(got, string(b))
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("the output folder has %q, %v, want %q", got, err, want)
		}
	}
	s := start()
	made(s, "one")
	first := made(s, "one", "two")
	there("one", "two")
	if err := s.note("job", 1, files("two")[0].Ref); err != nil { // it dies before it notes the name
		t.Fatal(err)
	}
	s = start()
	if again := made(s, "one", "two"); !slices.Equal(again, first) {
		t.Errorf("the next run of the daemon names the files %v, want %v", again, first)
	}
	there("one", "two")
	if again := made(s, "one", "other"); again[0] != first[0] {
		t.Errorf("the next attempt names the files %v, want the first one of %v", again, first)
	}
	there("one", "other")
	if got := s.left(); !slices.Equal(got, []string{"job"}) {
		t.Errorf("the jobs with files that no record names are %v", got)
	}
	if err := os.WriteFile(filepath.Join(cfg.Output, first[0]), []byte("theirs"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.drop("job")
	there("theirs")
	if left, err := os.ReadDir(cfg.Stage); err != nil || len(left) != 0 || s.left() != nil {
		t.Errorf("the stage has %v, %v", left, err)
	}
}

// saver is an executor that saves a picture and loses its worker then.
type saver struct{ maker }

func (m *saver) Run(_ context.Context, task Task, sink Sink) (*Outcome, error) {
	for _, f := range m.files {
		sink.File(f)
	}
	sink.Event(message.Event{Type: message.EventExecuted, Node: "9", Data: map[string]any{"node": "9"}})
	return nil, fault.New(fault.WorkerLost, "lost in attempt %d", task.Attempt)
}

// TestWhatLostAttemptsMade loses the worker of a job in every attempt, after the same picture: the job fails with that
// picture, which is there once and is told once an attempt.
func TestWhatLostAttemptsMade(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		outputs, err := NewOutputs(OutputsConfig{Stage: filepath.Join(dir, "stage"), Output: filepath.Join(dir, "output")})
		if err != nil {
			t.Fatal(err)
		}
		j := New(Config{MaxAttempts: 2})
		mustCreate(t, j, &message.RunRequest{ID: "job"})
		f := message.File{Data: []byte("picture"), Ref: message.OutputRef{
			Node: "9", Kind: "images", Type: "output", Prefix: "p", Ext: ".png", Bytes: 7,
			CRC32C: message.Checksum([]byte("picture")),
		}}
		ctx, stop := context.WithCancel(wiretest.Context(t))
		done := make(chan struct{})
		go func() {
			d := &Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
			d.Work(ctx, ctx, []Executor{&saver{maker{files: []message.File{f}}}})
			close(done)
		}()
		defer func() { stop(); <-done }()
		cur, err := j.Follow(ctx, "job", 0, false)
		if err != nil {
			t.Fatal(err)
		}
		defer cur.Close()
		told := 0
		for {
			it, err := cur.Next(ctx)
			if errors.Is(err, ErrEnd) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if it.Event.Type == message.EventExecuted {
				told++
				list, _ := it.Event.Data["output"].(map[string]any)["images"].([]any)
				if len(list) != 1 || list[0].(map[string]any)["filename"] != "p_00001_.png" {
					t.Errorf("attempt %d tells of %v", it.Event.Attempt, list)
				}
			}
		}
		rec, err := j.Get("job")
		if err != nil || rec.State != message.Failed || rec.Attempt != 2 || told != 2 || len(rec.Outputs) != 1 ||
			rec.Outputs[0].Filename != "p_00001_.png" {
			t.Errorf("the job is %s after %d attempts, %v; %d were told; its files are %v", rec.State, rec.Attempt, err, told,
				rec.Outputs)
		}
		if made, err := os.ReadDir(filepath.Join(dir, "output")); err != nil || len(made) != 1 {
			t.Errorf("the output folder has %v, %v", made, err)
		}
	})
}
