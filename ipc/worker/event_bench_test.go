package worker_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/worker"
	"patchbay/tests/natsserver"
)

// BenchmarkEvent measures what one progress event costs from the worker process to the stream: frames, table, JSON,
// NATS. A step of 100 ms makes one.
func BenchmarkEvent(b *testing.B) {
	e := natsserver.Start(b, natsserver.Inside(""), natsserver.JetStream(b))
	l, err := jobs.OpenJetStream(context.Background(),
		jobs.JetStreamConfig{URL: e.URL, Owner: "a", Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	n, err := serve.ConnectNATS(serve.NATSConfig{URL: e.URL, Version: "0.1.0", Owner: "a", Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	j := jobs.New(l.On(jobs.Config{OnEvent: n.Event}))
	child := worker.NewChild(worker.ChildConfig{Name: "w", Command: ipctest.WorkerCommand, Log: zerolog.Nop()})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = child.Supervise(ctx); close(done) }()
	defer func() { stop(); <-done; n.Close() }()
	if err := child.Ready(ctx); err != nil {
		b.Fatal(err)
	}
	if _, _, err := j.Create(ctx, &message.RunRequest{ID: "e"}, "hash"); err != nil {
		b.Fatal(err)
	}
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
		sink := jobs.Sink{Event: func(ev message.Event) { j.Append(rec.Job, -1, ev) }, Preview: func(string, []byte) {}}
		if _, err := child.Run(ctx, jobs.Task{Req: &message.RunRequest{
			ID:       wire.NewID(),
			Workflow: messagetest.Graph("Step 1000"),
		}, Attempt: 1}, sink); err != nil {
			b.Fatal(err)
		}
		each = time.Since(began) / steps
	}
	b.ReportMetric(float64(each.Microseconds()), "us/event")
}

// BenchmarkFirstEvent measures the time from handing a job to a worker process until its execution_start is back.
func BenchmarkFirstEvent(b *testing.B) {
	_, child := ipctest.ChildRig(b, nil)
	ctx := context.Background()
	if err := child.Ready(ctx); err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		first := sync.OnceFunc(func() { took = append(took, time.Since(began)) })
		if _, err := child.Run(ctx, jobs.Task{Req: &message.RunRequest{
			ID: wire.NewID(), Workflow: messagetest.Graph("Step 1"),
		}, Attempt: 1}, jobs.Sink{Event: func(message.Event) { first() }, Preview: func(string, []byte) {}}); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
}
