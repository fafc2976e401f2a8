package sim

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
)

// node is a daemon without carriers: the store, the table, the outputs and the dispatcher that it would have, with
// workers that compute nothing.
type node struct {
	w      *world
	name   string
	oracle *oracle

	mu    sync.Mutex
	table *jobs.Table // nil: it is down
	until time.Time   // cut off from the server until then
	dead  bool
	end   func()
}

// up returns the table; nil if the daemon is down.
func (n *node) up() *jobs.Table {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.table
}

func (n *node) cutOff() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead || time.Now().Before(n.until)
}

// folder is where the node keeps files.
func (n *node) folder(name string) string { return filepath.Join(n.w.base, n.name, name) }

// start starts the daemon, as often as it takes, since the server may be away.
func (n *node) start() {
	n.mu.Lock()
	n.dead = false
	n.mu.Unlock()
	for n.tryStart() != nil {
		time.Sleep(100 * time.Millisecond)
	}
}

func (n *node) tryStart() (err error) {
	ctx := context.Background()
	var closes []func()
	defer func() {
		for i := len(closes) - 1; err != nil && i >= 0; i-- {
			closes[i]()
		}
	}()
	store, err := jobs.OpenJetStream(ctx, jobs.JetStreamConfig{
		URL: "nats://sim", InProcess: way{n.w, n}, Owner: n.name, Log: zerolog.Nop(), Limit: 8 << 30,
	})
	if err != nil {
		return err
	}
	closes = append(closes, func() { store.GiveUp(); store.Close() })
	nc, err := nats.Connect("nats://sim", nats.InProcessServer(way{n.w, n}), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	closes = append(closes, nc.Close)
	events := jobs.NewPublisher(nc, zerolog.Nop())
	closes = append(closes, events.Close)
	outputs, err := jobs.NewOutputs(jobs.OutputsConfig{
		Stage: n.folder("stage"), Output: n.folder("output"), Keep: true, Log: zerolog.Nop(),
	})
	if err != nil {
		return err
	}
	table := jobs.New(store.On(jobs.Config{
		Log: zerolog.Nop(), OnForget: outputs.Forget, Keep: 1 << 30, MaxQueued: 1 << 20,
		OnEvent: func(ev message.Event) {
			m, err := jobs.EventMessage(ev, n.name, 8<<20)
			if err != nil {
				n.w.violated("an event cannot be sent: %v", err)
				return
			}
			events.Put(m)
		},
	}))
	if err := table.Open(ctx); err != nil {
		return err
	}
	d := &jobs.Dispatcher{Jobs: table, Outputs: outputs, Log: zerolog.Nop()}
	if err := d.Recover(ctx); err != nil {
		return err
	}
	take, stopTaking := context.WithCancel(ctx)
	run, stopRunning := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { table.Reconcile(take) })
	wg.Go(func() { d.Work(take, run, []jobs.Executor{&worker{n: n, name: "w0"}, &worker{n: n, name: "w1"}}) })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.table = table
	n.end = func() {
		n.w.cut(func(l *link) bool { return l.node == n })
		stopTaking()
		stopRunning()
		store.GiveUp()
		wg.Wait()
		nc.Close()
		events.Close()
		store.Close()
	}
	return nil
}

// crash ends the daemon without a word to the server: its links are cut first.
func (n *node) crash() {
	n.mu.Lock()
	n.dead, n.table = true, nil
	end := n.end
	n.mu.Unlock()
	end()
}

// away cuts the node off from the server for a while.
func (n *node) away(d time.Duration) {
	n.mu.Lock()
	n.until = time.Now().Add(d)
	n.mu.Unlock()
	n.w.cut(func(l *link) bool { return l.node == n })
}

// worker is an executor. Its jobs take up to half a minute, and some of them fail or lose it.
type worker struct {
	jobs.Executor
	n    *node
	name string
}

func (e *worker) Name() string { return e.name }

func (e *worker) Ready(ctx context.Context) error { return ctx.Err() }

// The words of failures that workers make up; any other failure of a job is a violation.
const (
	workerDied = "the worker died by chance"
	nodeFailed = "the node failed by chance"
)

func (e *worker) Run(ctx context.Context, task jobs.Task, sink jobs.Sink) (*jobs.Outcome, error) {
	w, body := e.n.w, string(task.Req.Inputs["x"])
	e.n.oracle.runs(task.Req.ID, task.Attempt, body)
	sink.Event(message.Event{Type: message.EventStart})
	takes := w.between(20*time.Millisecond, 3*time.Second)
	if w.chance(.05) {
		takes *= 8
	}
	const steps = 4
	for i := range steps {
		select {
		case <-time.After(takes / steps):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		sink.Event(message.Event{Type: message.EventProgress, Data: map[string]any{"value": i + 1}})
	}
	switch {
	case w.chance(.03):
		w.happened("worker lost", "%s at %s", task.Req.ID, e.n.name)
		return nil, fault.New(fault.WorkerLost, workerDied)
	case w.chance(.02):
		w.happened("node failed", "%s at %s", task.Req.ID, e.n.name)
		return nil, fault.New(fault.Internal, nodeFailed)
	}
	f := message.File{
		Ref:  message.OutputRef{Node: "9", Kind: "images", Type: "output", Prefix: task.Req.ID, Ext: ".png"},
		Data: picture(task.Req.ID, body),
	}
	f.Ref.Bytes, f.Ref.CRC32C = len(f.Data), message.Checksum(f.Data)
	return &jobs.Outcome{Files: []message.File{f}, Metrics: map[string]any{"model": "m"}}, nil
}

// picture is what a job with a body draws.
func picture(id, body string) []byte { return []byte("picture of " + id + " with " + body) }
