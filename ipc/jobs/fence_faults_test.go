package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// frozen is what a daemon that was stopped believes of the others.
type frozen struct {
	Machines
	gone *atomic.Value // the name of a daemon that it believes gone
}

func (f frozen) Alive(owner string) bool { return f.gone.Load() != owner && f.Machines.Alive(owner) }

// frozenTable returns the table of a daemon that hears records and events from the test, in an order of its choice.
func frozenTable(t *testing.T, e *bubble.Server, owner string) *Table {
	t.Helper()
	j, _ := durable(t, e, owner+"-carrier") // it has the connection on which events are published
	l, err := OpenJetStream(context.Background(), JetStreamConfig{
		URL: e.URL, InProcess: e, Owner: owner, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	cfg := l.On(Config{OnEvent: j.cfg.OnEvent})
	cfg.Machines = frozen{l.machines, new(atomic.Value)}
	return New(cfg)
}

// TestLostLease checks a daemon that is frozen while its job runs. Another one takes the job and ends it, and the first
// one resumes and learns of that in any order, or of only a part of it. The job has one terminal event, which its
// followers at the first daemon get. The lost run is stopped and publishes nothing more.
func TestLostLease(t *testing.T) {
	for _, order := range []string{"events, last record", "last record, events", "every record", "last record only"} {
		bubble.Part(t, order, func(t *testing.T) {
			e := jetstreamServer(t, false)
			a := frozenTable(t, e, "a")
			b, endB := durable(t, e, "b")
			ctx := wiretest.Context(t)
			mustCreate(t, a, &message.RunRequest{ID: "p"})
			first, _, stop, err := a.Take(ctx, "w")
			if err != nil {
				t.Fatal(err)
			}
			cur, err := a.Follow(ctx, "p", 0, false)
			if err != nil {
				t.Fatal(err)
			}
			for !knowsAt(b, "p", first.Rev) {
				time.Sleep(time.Millisecond)
			}
			b.handBack(ctx, first, "daemon a shows no sign of life")
			second, _, _, err := b.takeThis(ctx, "p", "w")
			if err != nil || second.Attempt != 2 {
				t.Fatalf("took %+v, %v", second, err)
			}
			for range 50 { // it has not noticed, and its events get higher numbers than the other daemon's
				a.Append("p", 1, message.Event{Type: message.EventProgress, Data: map[string]any{}})
				if _, err := cur.Next(ctx); err != nil {
					t.Fatal(err)
				}
			}
			last, err := force(ctx, b, "p", second.Rev,
				func(r *message.Record) { r.State, r.Finished = message.Done, time.Now().UnixMilli() })
			if err != nil {
				t.Fatal(err)
			}
			events := inStream(ctx, t, a, "p", 50+4) // queued, retrying, success, and one a step
			records := []message.Record{last}
			if order == "every record" {
				queued := first
				queued.State, queued.Rev = message.Queued, first.Rev+1
				records = []message.Record{queued, second, last}
			}
			hear := func() {
				for _, ev := range events {
					a.Hear(ev)
				}
			}
			if order == "events, last record" {
				hear()
			}
			for _, rec := range records {
				a.observe(rec)
			}
			if order == "last record, events" {
				hear()
			}
			select {
			case <-stop:
			default:
				t.Error("the run that lost its job goes on")
			}
			if a.Append("p", 1, message.Event{Type: message.EventProgress}) {
				t.Error("an event of the lost attempt was taken")
			}
			muteDaemon(storeOf(b), a)
			a.mu.Lock()
			a.cfg.Now = func() time.Time { return time.Now().Add(time.Minute) }
			a.mu.Unlock()
			a.reconcile(ctx)
			if got := ends(ctx, t, cur); got != message.EventSuccess {
				t.Errorf("who follows the job at the first daemon is told %q at the end", got)
			}
			endB() // a restarted b finds the end in the stream, although later events follow it
			b, _ = durable(t, e, "b")
			outputs, err := NewOutputs(OutputsConfig{})
			if err != nil {
				t.Fatal(err)
			}
			if err := (&Dispatcher{Jobs: b, Outputs: outputs, Log: zerolog.Nop()}).Recover(ctx); err != nil {
				t.Error(err)
			}
			checkTerminal(t, e, "p", message.EventSuccess)
		})
	}
}

// knowsAt reports whether a table has a record at a revision.
func knowsAt(j *Table, id string, rev uint64) bool {
	rec, err := j.Get(id)
	return err == nil && rec.Rev == rev
}

// muteDaemon makes the table's store believe that the daemon of the other store has been gone for long.
func muteDaemon(silent *JetStream, j *Table) { j.cfg.Machines.(frozen).gone.Store(silent.Owner()) }

// inStream waits until the stream has n-1 events or more and returns those that daemon a did not publish itself.
func inStream(ctx context.Context, t *testing.T, j *Table, id string, n int) []message.Event {
	t.Helper()
	l := storeOf(j)
	for {
		c, err := l.events.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if c.State.Msgs >= uint64(n-1) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	var out []message.Event
	for seq := uint64(1); ; seq++ {
		m, err := l.events.GetMsg(ctx, seq)
		if err != nil {
			return out
		}
		ev, err := readEvent(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get("Patchbay-Daemon") != "a-carrier" {
			out = append(out, *ev)
		}
	}
}

// ends follows a job to its end and returns the types of its terminal events, joined.
func ends(ctx context.Context, t *testing.T, cur *Cursor) string {
	t.Helper()
	out := ""
	for {
		it, err := cur.Next(ctx)
		if errors.Is(err, ErrEnd) {
			return out
		}
		if err != nil {
			t.Error(fmt.Errorf("follow: %w", err))
			return out
		}
		if message.Terminal(it.Event.Type) {
			out += it.Event.Type
		}
	}
}

// TestEndHasOneName checks that the stream takes the end of a job for the same message whichever daemon publishes it,
// and that the end of a later run is another.
func TestEndHasOneName(t *testing.T) {
	t.Parallel()
	name := func(finished int64, before int) (got string) {
		j := New(Config{OnEvent: func(ev message.Event) {
			m, err := EventMessage(ev, "d", 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			got = m.Header.Get(jetstream.MsgIDHeader)
		}})
		j.publishEnd(message.Record{
			Job: "p", State: message.Failed, Attempt: 1, Finished: finished, EndSeq: uint64(before + 1),
		})
		return got
	}
	if a, b := name(1000, 0), name(1000, 5); a != b || a == "" {
		t.Errorf("one end is %q to one daemon and %q to another", a, b)
	}
	if a, b := name(1000, 0), name(2000, 0); a == b {
		t.Errorf("two ends are both %q", a)
	}
}
