package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/message"
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
