// Package ipctest starts services, workers and servers for the tests of several packages: a fake executor whose
// workflow says what happens, a service on it, a supervised fake worker process, a server whose users have limited
// rights.
package ipctest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"patchbay/ipc/client"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/meter"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire/wiretest"
	"patchbay/ipc/worker"
)

// Main runs the tests of a package and checks for leaked goroutines. It is also the worker process of the supervisor's
// tests: with PATCHBAY_TEST_WORKER set it serves a fake executor on its stdin and stdout, to a daemon if that is
// "private".
func Main(m *testing.M) {
	if os.Getenv("PATCHBAY_TEST_WORKER") != "" {
		cfg := worker.Config{
			Executor: &Fake{Label: "fake"}, Classes: FakeService().Classes, Log: zerolog.Nop(), Jobs: 2,
			Private: os.Getenv("PATCHBAY_TEST_WORKER") == "private", Heartbeat: FakeService().Heartbeat,
		}
		ctx := context.Background()
		if err := worker.Run(ctx, ctx, os.Stdin, os.Stdout, cfg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if code == 0 {
		if err := leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaks reports goroutines that do not end within a minute. One of nats.go that fetches while its connection is closed
// times out after three seconds at most.
func leaks() (err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}

// Rig is a service with one fake executor and a running dispatcher.
type Rig struct {
	Jobs    *jobs.Table
	Service *serve.Service
	Outputs *jobs.Outputs
	Meter   *meter.Meter
}

// NewRig starts a service on the executors (one fake if none are given). It ends with the test.
func NewRig(t testing.TB, jc jobs.Config, sc jobs.OutputsConfig, executors ...jobs.Executor) *Rig {
	t.Helper()
	return NewTunedRig(t, func(*serve.ServiceConfig) {}, jc, sc, executors...)
}

// NewTunedRig is NewRig with a service configuration that tune may change.
func NewTunedRig(t testing.TB, tune func(*serve.ServiceConfig), jc jobs.Config, sc jobs.OutputsConfig,
	executors ...jobs.Executor,
) *Rig {
	t.Helper()
	outputs, err := jobs.NewOutputs(sc)
	if err != nil {
		t.Fatal(err)
	}
	if len(executors) == 0 {
		executors = []jobs.Executor{&Fake{Label: "fake"}}
	}
	if jc.OnForget == nil {
		jc.OnForget = outputs.Forget
	}
	table := jobs.New(jc)
	cfg := FakeService()
	cfg.Meter = meter.New()
	cfg.Jobs, cfg.Outputs, cfg.Executors = table, outputs, executors
	tune(&cfg)
	svc := serve.NewService(cfg)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		d := jobs.Dispatcher{Jobs: table, Outputs: outputs, Log: zerolog.Nop()}
		d.Work(ctx, ctx, executors)
		close(done)
	}()
	t.Cleanup(func() {
		stop()
		<-done
		svc.Close()
	})
	return &Rig{Jobs: table, Service: svc, Outputs: outputs, Meter: cfg.Meter}
}

// ChildRig returns a rig whose executor is a supervised fake worker process. tune, if not nil, may change the
// configuration of the child, and services that of the service.
func ChildRig(t testing.TB, tune func(*worker.ChildConfig),
	services ...func(*serve.ServiceConfig),
) (*Rig, *worker.Child) {
	t.Helper()
	cfg := worker.ChildConfig{Name: "worker 0", Command: WorkerCommand, Log: zerolog.Nop(), BackOff: 10 * time.Millisecond}
	if tune != nil {
		tune(&cfg)
	}
	child := worker.NewChild(cfg)
	r := NewTunedRig(t, func(sc *serve.ServiceConfig) {
		for _, f := range services {
			f(sc)
		}
	}, jobs.Config{}, jobs.OutputsConfig{}, child)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = child.Supervise(ctx); close(done) }()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return r, child
}

// DialRig connects a client to a rig over frames on a pipe.
func DialRig(t *testing.T, r *Rig) *client.FrameClient {
	t.Helper()
	clientEnd, serverEnd := net.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := (&serve.Stdio{In: serverEnd, Out: serverEnd}).Serve(ctx, ctx, r.Service.Answerer); err != nil &&
			!errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("serve: %v", err)
		}
	}()
	c := client.NewFrameClient(clientEnd, clientEnd, clientEnd.Close)
	t.Cleanup(func() {
		_ = c.Close()
		stop()
		<-done
	})
	return c
}

// Types lists the types of events.
func Types(evs []message.Event) []string {
	var out []string
	for _, e := range evs {
		out = append(out, e.Type)
	}
	return out
}

// RunJob runs a workflow and returns its events, the collector and the terminal event.
func RunJob(t *testing.T, c client.Client, req *message.RunRequest) ([]message.Event,
	*client.Collector, *message.Event,
) {
	t.Helper()
	var evs []message.Event
	col := &client.Collector{Event: func(e message.Event) { evs = append(evs, e) }}
	end, err := client.Run(wiretest.Context(t), c, req, col)
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	if end == nil {
		t.Fatalf("no terminal event; events %v", Types(evs))
	}
	return evs, col, end
}

// WaitState waits until a job is in a state and returns its record.
func WaitState(t *testing.T, j *jobs.Table, id string, want message.State) message.Record {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		rec, err := j.Get(id)
		if err == nil && rec.State == want {
			return rec
		}
		if time.Now().After(deadline) {
			t.Fatalf("job %s is %+v (%v), want state %s", id, rec, err, want)
		}
		time.Sleep(time.Millisecond)
	}
}

// CancelInAttempt waits until a job runs in an attempt or a later one, cancels it and returns its last record. A job
// that would go on for long shows that it is tried again without a bet on how fast this machine is.
func CancelInAttempt(t *testing.T, j *jobs.Table, c client.Client, id string, attempt int) message.Record {
	t.Helper()
	ctx := wiretest.Context(t)
	for rec, err := j.Get(id); err != nil || rec.State != message.Running || rec.Attempt < attempt; rec, err = j.Get(id) {
		if ctx.Err() != nil || rec.State.Final() {
			t.Fatalf("job %s is %+v (%v), want it running in attempt %d", id, rec, err, attempt)
		}
		time.Sleep(time.Millisecond)
	}
	if _, _, err := client.Cancel(ctx, c, id); err != nil {
		t.Fatal(err)
	}
	return WaitState(t, j, id, message.Cancelled)
}
