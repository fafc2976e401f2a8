package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
)

// late is a store of one job whose first write of an end is refused, and yet takes effect.
type late struct {
	memory
	refusal error
	rev     uint64
	there   message.Record
}

func (s *late) swap(_ context.Context, rec message.Record) (message.Record, error) {
	if rec.Rev != s.rev {
		return message.Record{}, errConflict
	}
	s.rev++
	rec.Rev = s.rev
	if rec.State.Final() && s.there.Job == "" {
		s.there = rec
		return message.Record{}, s.refusal
	}
	return rec, nil
}

func (s *late) get(context.Context, string) (message.Record, error) {
	if s.there.Job == "" {
		return message.Record{}, ErrNoJob
	}
	return s.there, nil
}

// TestAnEndThatComesTrueLate checks a write that a NATS server refuses although another server has passed it on. The
// job has its one end with its files: from its worker where the record says what the worker wrote, and from reconcile
// where the worker gave up.
func TestAnEndThatComesTrueLate(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]error{"conflict": errConflict, "given up": errors.New("no server leads")} {
		t.Run(name, func(t *testing.T) {
			ctx := wiretest.Context(t)
			store := &late{refusal: refusal, rev: 1}
			ends, now := 0, time.Now()
			j := New(Config{Store: store, Now: func() time.Time { return now }, OnEvent: func(ev message.Event) {
				if message.Terminal(ev.Type) {
					ends++
				}
			}})
			if _, _, err := j.Create(ctx, &message.RunRequest{ID: "a", Workflow: "{}"}, "hash"); err != nil {
				t.Fatal(err)
			}
			rec, req, _, err := j.Take(ctx, "w")
			if err != nil {
				t.Fatal(err)
			}
			outputs, err := NewOutputs(OutputsConfig{})
			if err != nil {
				t.Fatal(err)
			}
			d := &Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
			d.run(ctx, &maker{files: manyFiles(1, "a")}, rec, req, nil)
			if refusal != errConflict { //nolint:errorlint // the very one
				if ends > 0 {
					t.Fatal("who gave up has told the end")
				}
				j.observe(store.there) // as the watch of the records reports it
				now = now.Add(2 * settled)
				j.reconcile(ctx)
			}
			got, err := j.Get("a")
			if err != nil || got.State != message.Done || len(got.Outputs) != 1 || ends != 1 {
				t.Errorf("the job is %s with %d files and %d ends, %v; want done with one of each", got.State, len(got.Outputs),
					ends, err)
			}
		})
	}
}

// losing is a store that has lost the end of a job when the names of its files are to be recorded.
type losing struct {
	memory
	end message.Record // that was lost; no job: none was yet
}

func (s *losing) swap(ctx context.Context, rec message.Record) (message.Record, error) {
	if s.end.Job == "" && len(rec.Outputs) > 0 && rec.Outputs[0].Filename != "" {
		s.end, _ = s.get(ctx, rec.Job)
		before := s.end.Clone()
		before.State, before.Finished, before.Outputs = message.Queued, 0, nil
		s.put(before, nil)
	}
	return s.memory.swap(ctx, rec)
}

// TestNamesAfterALostEnd checks a job whose end was lost before the names of its files were recorded. When it has been
// written again, they are, as often as the names are lost; until then the job is left alone.
func TestNamesAfterALostEnd(t *testing.T) {
	t.Parallel()
	ctx, out := wiretest.Context(t), t.TempDir()
	store := &losing{}
	j := New(Config{Store: store, OnEvent: func(message.Event) {}})
	mustCreate(t, j, &message.RunRequest{ID: "a", Workflow: "{}"})
	rec, req, _, err := j.Take(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	outputs, err := NewOutputs(OutputsConfig{Stage: out + "/.stage", Output: out})
	if err != nil {
		t.Fatal(err)
	}
	d := &Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
	d.run(ctx, &maker{files: []message.File{message.FileOf(messagetest.Picture("9", 1000))}}, rec, req, nil)
	d.nameAgain(ctx)
	if got, err := j.Get("a"); err != nil || got.State != message.Queued || store.end.State != message.Done {
		t.Fatalf("the job is %s, %v, and its end %s; want one that was lost", got.State, err, store.end.State)
	}
	j.observe(store.put(store.end, nil))
	d.nameAgain(ctx)
	if got, err := j.Get("a"); err != nil || len(got.Outputs) != 1 || got.Outputs[0].Filename == "" {
		t.Errorf("the record has files %v, %v; want one with its name", got.Outputs, err)
	}
	j.observe(store.put(store.end, nil)) // another daemon writes again what it knows
	d.nameAgain(ctx)
	if got, err := j.Get("a"); err != nil || len(got.Outputs) != 1 || got.Outputs[0].Filename == "" {
		t.Errorf("the names were lost, and the record has files %v, %v; want them there again", got.Outputs, err)
	}
}
