package jobs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// stockServer starts a nats-server with JetStream and default limits: messages of at most 1 MiB. storeBytes limits its
// files; 0 means no limit.
func stockServer(t testing.TB, storeBytes int64) *bubble.Server {
	t.Helper()
	bound := ""
	if storeBytes > 0 {
		bound = fmt.Sprintf(", max_file_store: %d", storeBytes)
	}
	return bubble.Start(t, fmt.Sprintf("jetstream { store_dir: %q%s }\n", t.TempDir(), bound))
}

// tableOn returns the table of one daemon on a server that has room for limit bytes; 0 means unknown.
func tableOn(t testing.TB, e *bubble.Server, owner string, limit int64) *Table {
	t.Helper()
	ctx := wiretest.Context(t)
	l, err := OpenJetStream(ctx, JetStreamConfig{URL: e.URL, InProcess: e, Owner: owner, Limit: limit, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	nc, err := nats.Connect(e.URL, nats.InProcessServer(e))
	if err != nil {
		t.Fatal(err)
	}
	out := NewPublisher(nc, zerolog.Nop())
	t.Cleanup(func() { out.Close(); nc.Close() })
	j := New(l.On(Config{OnEvent: func(ev message.Event) {
		if m, err := EventMessage(ev, owner, int(nc.MaxPayload())); err != nil {
			t.Error(err)
		} else {
			out.Put(m)
		}
	}}))
	if err := j.Open(ctx); err != nil {
		t.Fatal(err)
	}
	return j
}

// noise returns text that cannot be compressed to less than half its length.
func noise(n int) string {
	b := make([]byte, n/2)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// maker is an executor whose jobs all produce the same files.
type maker struct {
	Executor
	files []message.File
}

func (m *maker) Name() string                { return "maker" }
func (m *maker) Ready(context.Context) error { return nil }
func (m *maker) Run(context.Context, Task, Sink) (*Outcome, error) {
	return &Outcome{Files: m.files, Hold: bulk.Holding()}, nil
}

// manyFiles returns n pictures of one node, with the prefixes in turn.
func manyFiles(n int, prefix ...string) []message.File {
	out := make([]message.File, n)
	for i := range out {
		out[i].Ref = message.OutputRef{
			Node: "9", Index: i, Kind: "images", Type: "output", Ext: ".png", Prefix: prefix[i%len(prefix)],
			Width: 64, Height: 64, Bytes: 1000 + i, CRC32C: uint32(i) * 2654435761,
		}
		out[i].Ref.Filename = out[i].Ref.Prefix + "_00001_.png"
	}
	return out
}

// work runs jobs on a maker until the job has ended.
func work(t *testing.T, j *Table, job string, m *maker) message.Record {
	t.Helper()
	outputs, err := NewOutputs(OutputsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(wiretest.Context(t))
	defer stop()
	d := &Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
	done := make(chan struct{})
	go func() { d.Work(ctx, ctx, []Executor{m}); close(done) }()
	defer func() { stop(); storeOf(j).GiveUp(); <-done }()
	cur, err := j.Follow(ctx, job, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	for {
		if _, err := cur.Next(ctx); errors.Is(err, ErrEnd) {
			rec, err := j.Get(job)
			if err != nil {
				t.Fatal(err)
			}
			return rec
		} else if err != nil {
			rec, _ := j.Get(job)
			t.Fatalf("job %s did not end: %v; it is %s", job, err, rec.State)
		}
	}
}

// TestManyPicturesOnAStockServer checks that 4,096 pictures with long names fit the record, its events and the dead
// letters of a server that takes messages of 1 MiB.
func TestManyPicturesOnAStockServer(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		j := tableOn(t, stockServer(t, 0), "a", 0)
		mustCreate(t, j, &message.RunRequest{ID: "many"})
		rec := work(t, j, "many", &maker{files: manyFiles(4096, strings.Repeat("long/", 20)+strings.Repeat("n", 200))})
		if rec.State != message.Done || len(rec.Outputs) != 4096 {
			t.Fatalf("the job is %s (%v) with %d outputs, want all of 4096", rec.State, rec.Error, len(rec.Outputs))
		}
		got, err := storeOf(j).get(wiretest.Context(t), "many")
		if err != nil || len(got.Outputs) != 4096 || got.Outputs[4095] != rec.Outputs[4095] {
			t.Errorf("the store has %d outputs, %v; want 4096, the same", len(got.Outputs), err)
		}
		for ctx := wiretest.Context(t); ; {
			number, err := storeOf(j).told(ctx, rec)
			if err != nil {
				t.Fatalf("no terminal event in the stream: %v", err)
			}
			if number > 0 {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// TestRecordThatCannotBeWritten checks that a record that no message can hold ends its job, with the reason, and that
// the worker takes the next one.
func TestRecordThatCannotBeWritten(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := stockServer(t, 0)
		j := tableOn(t, e, "a", 0)
		prefixes := make([]string, 512)
		for i := range prefixes {
			prefixes[i] = noise(8000)
		}
		mustCreate(t, j, &message.RunRequest{ID: "huge"})
		rec := work(t, j, "huge", &maker{files: manyFiles(512, prefixes...)})
		if rec.State != message.Failed || rec.Error == nil || rec.Error.Public() != fault.TooLarge {
			t.Fatalf("the job is %s (%v), want failed: too_large", rec.State, rec.Error)
		}
		j = tableOn(t, e, "a", 0)
		mustCreate(t, j, &message.RunRequest{ID: "next"})
		if rec := work(t, j, "next", &maker{}); rec.State != message.Done {
			t.Errorf("the next job is %s", rec.State)
		}
	})
}

// TestLongNewRecord checks that a job whose record has no room for later changes is refused on arrival, and that one
// accepted by an earlier version ends as soon as its record cannot be written.
func TestLongNewRecord(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		j := tableOn(t, stockServer(t, 0), "a", 0)
		ctx := wiretest.Context(t)
		_, _, err := j.Create(ctx, &message.RunRequest{ID: "long", Client: noise(1200_000)}, "hash")
		if e := fault.From(err); err == nil || e.Public() != fault.TooLarge {
			t.Fatalf("got %v, want too_large", err)
		}
		rec := j.fresh(&message.RunRequest{ID: "old", Client: strings.Repeat("x", 1<<20-600)}, "hash")
		rec.Owner = "a"
		plain, err := plainRecord(rec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := storeOf(j).jobs.Create(ctx, "old", plain); err != nil {
			t.Fatal(err)
		}
		for !j.knows("old") {
			time.Sleep(time.Millisecond)
		}
		if _, _, err := j.do(ctx, "old", taken{"w", "a", "c"}); err != nil {
			t.Fatal(err)
		}
		_, _, err = j.do(ctx, "old", ended{attempt: attempt{1, "a"}, metrics: map[string]any{"x": noise(2 << 20)}})
		if !errors.Is(err, errLong) {
			t.Fatalf("got %v, want a record that is too long", err)
		}
		if rec, err := j.Get("old"); err != nil || rec.State != message.Failed || rec.Error.Public() != fault.TooLarge ||
			rec.Finished == 0 {
			t.Errorf("the job is %s, %v, %v, ended at %d; want failed: too_large, and when", rec.State, rec.Error, err,
				rec.Finished)
		}
	})
}
