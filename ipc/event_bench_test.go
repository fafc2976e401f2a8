package ipc

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// BenchmarkEvent is what one event of progress costs from the worker process to the stream: frames, table, JSON, NATS. A step of 100 ms makes one.
func BenchmarkEvent(b *testing.B) {
	e := ledgerServer(b, true)
	l, err := OpenLedger(context.Background(), LedgerConfig{URL: e.URL(), InProcess: e.InProcess(), Owner: "a", Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	n, err := ConnectNATS(NATSConfig{URL: e.URL(), Version: "0.1.0", Owner: "a", Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	j := NewJobs(JobsConfig{Ledger: l, OnEvent: n.Event})
	child := NewChild(ChildConfig{Name: "w", Command: workerCommand, Log: zerolog.Nop()})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = child.Supervise(ctx); close(done) }()
	defer func() { stop(); <-done; n.Close() }()
	if err := child.Ready(ctx); err != nil {
		b.Fatal(err)
	}
	mustCreate(b, j, &RunRequest{ID: "e"})
	if err := j.Open(ctx); err != nil {
		b.Fatal(err)
	}
	rec, _, _, err := j.Take(ctx, "w")
	if err != nil {
		b.Fatal(err)
	}
	const steps = 1000
	var each time.Duration
	for b.Loop() {
		began := time.Now()
		sink := Sink{Event: func(ev Event) { j.Append(ctx, rec.Job, -1, ev) }, Preview: func(string, []byte) {}}
		if _, err := child.Run(ctx, Task{Req: &RunRequest{ID: NewJobID(), Workflow: nodesOf("Step 1000")}, Attempt: 1}, sink); err != nil {
			b.Fatal(err)
		}
		each = time.Since(began) / steps
	}
	b.ReportMetric(float64(each.Microseconds()), "us/event")
}
