package sim

import (
	"bytes"
	"cmp"
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/register"
)

// node is a daemon without carriers: the store, the table, the outputs and the dispatcher that it would have, with
// workers that compute nothing.
type node struct {
	w      *world
	name   string
	dir    string // the folder of its files
	oracle *oracle
	clock  time.Duration // how far its clock is ahead

	mu    sync.Mutex
	table *jobs.Table     // nil: it is down
	life  context.Context // of that table
	until time.Time       // cut off from the server until then
	dead  bool

	giveUp, end func() // what stops it, and what waits until it has stopped
	// when its last heartbeat arrived, and when the last one arrived after a long silence
	beat, silent time.Time
}

// Write adds what the daemon logs to the trace.
func (n *node) Write(line []byte) (int, error) {
	n.w.note("log of %s: %s", n.name, bytes.TrimSpace(line))
	return len(line), nil
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

// lastSilent returns when the daemon was last silent for so long that others may take its jobs.
func (n *node) lastSilent() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.beat) >= silence {
		return time.Now()
	}
	return n.silent
}

// silence is how long a daemon is silent before others take its jobs.
const silence = register.DeadAfter - register.BeatEvery

// heard notes that the server hears a message of the daemon.
func (n *node) heard(text []byte) {
	if !bytes.Contains(text, []byte("$KV."+message.MachineBucket+"."+n.name)) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.beat) >= silence {
		n.silent = time.Now()
	}
	n.beat = time.Now()
}

// folder is where the node keeps files.
func (n *node) folder(name string) string { return filepath.Join(n.w.base, n.dir, name) }

// turnClock sets the clock, while the daemon is down, 25 hours ahead or right again.
func (n *node) turnClock() { n.clock = 25*time.Hour - n.clock }

// alive returns the table and a context that ends with it; nil if the daemon is down.
func (n *node) alive() (*jobs.Table, context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.table, n.life
}

// start starts the daemon, as often as it takes, since the server may be away.
func (n *node) start() {
	for n.tryStart() != nil {
		time.Sleep(100 * time.Millisecond)
	}
}

func (n *node) tryStart() (err error) {
	ctx, end := context.WithCancel(context.Background())
	closes := []func(){end}
	defer func() {
		for i := len(closes) - 1; err != nil && i >= 0; i-- {
			closes[i]()
		}
	}()
	log := zerolog.New(n).Level(zerolog.WarnLevel)
	n.mu.Lock()
	n.dead, n.giveUp = false, end
	n.mu.Unlock()
	store, err := jobs.OpenJetStream(ctx, jobs.JetStreamConfig{
		URL: "nats://sim", InProcess: way{n.w, n}, Owner: n.name, Log: log, Limit: 8 << 30,
	})
	if err != nil {
		return err
	}
	closes = append(closes, func() { store.GiveUp(); store.Close() })
	n.mu.Lock()
	n.giveUp = func() { end(); store.GiveUp() }
	n.mu.Unlock()
	nc, err := nats.Connect("nats://sim", nats.InProcessServer(way{n.w, n}), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return err
	}
	closes = append(closes, nc.Close)
	events := jobs.NewPublisher(nc, log)
	closes = append(closes, events.Close)
	outputs, err := jobs.NewOutputs(jobs.OutputsConfig{
		Stage: n.folder("stage"), Output: n.folder("output"), Keep: true, Log: log,
	})
	if err != nil {
		return err
	}
	if err := store.Machines().Alone(ctx); err != nil {
		return err
	}
	clock := n.clock
	table := jobs.New(store.On(jobs.Config{
		Now: func() time.Time { return time.Now().Add(clock) }, Log: log, OnForget: outputs.Forget, Keep: 1 << 30,
		MaxQueued: cmp.Or(n.w.plan.queue, 1<<20), MaxPerClient: n.w.plan.perClient,
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
	d := &jobs.Dispatcher{Jobs: table, Outputs: outputs, Log: log}
	if err := d.Recover(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var wg sync.WaitGroup
	wg.Go(func() { table.Reconcile(ctx) })
	wg.Go(func() { d.Work(ctx, ctx, []jobs.Executor{&worker{n: n, name: "w0"}, &worker{n: n, name: "w1"}}) })
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-store.Machines().Rival():
			n.w.note("%s gives way to another daemon of its name", n.dir)
			go n.yield()
		}
	})
	n.table, n.life = table, ctx
	n.end = func() {
		wg.Wait()
		nc.Close()
		events.Close()
		store.Close()
	}
	return nil
}

// crash ends the daemon without a word to the server. It reports false if the daemon is down.
func (n *node) crash() bool {
	n.mu.Lock()
	end, up := n.end, n.table != nil
	n.table = nil
	n.mu.Unlock()
	if up {
		n.die()
		end()
	}
	return up
}

// yield ends the daemon because another one of its name serves. If it is not the twin, it is started again later.
func (n *node) yield() {
	if n.crash() && n.dir == n.name {
		time.Sleep(10 * time.Second)
		n.start()
	}
}

// die stops all that the daemon does, and cuts it off from the server, until it is started again.
func (n *node) die() {
	n.mu.Lock()
	n.dead = true
	giveUp := n.giveUp
	n.mu.Unlock()
	n.cut()
	giveUp()
}

func (n *node) cut() {
	for _, l := range n.w.linksOf(n) {
		l.cut()
	}
}

// away cuts the node off from the server for a while.
func (n *node) away(d time.Duration) {
	n.mu.Lock()
	n.until = time.Now().Add(d)
	n.mu.Unlock()
	n.cut()
}

// worker is an executor that computes nothing. What the plan has in store for an attempt happens to it.
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

// stopTime is how long a hanging worker takes to be killed when its job is to stop.
const stopTime = 3 * time.Second

func (e *worker) Run(ctx context.Context, task jobs.Task, sink jobs.Sink) (*jobs.Outcome, error) {
	w, id, body := e.n.w, task.Req.ID, string(task.Req.Inputs["x"])
	defer e.n.oracle.runs(e.n, task.Req, task.Attempt)()
	sink.Event(message.Event{Type: message.EventStart})
	takes, fate := between(w.plan.dice("run", id, task.Attempt), 20*time.Millisecond, 3*time.Second), step{}
	for _, s := range w.plan.of(numberOf(id)) {
		if s.n == task.Attempt {
			w.happened(s)
			takes, fate = max(takes, s.lasts), s
		}
	}
	const steps = 4
	for i := range steps {
		select {
		case <-time.After(takes / steps):
		case <-ctx.Done():
			if fate.kind == hangs && e.n.up() != nil {
				time.Sleep(stopTime)
			}
			return nil, context.Cause(ctx)
		}
		if fate.kind != hangs {
			sink.Event(message.Event{Type: message.EventProgress, Data: map[string]any{"value": i + 1}})
		}
	}
	switch fate.kind {
	case dies, hangs:
		return nil, fault.New(fault.WorkerLost, workerDied)
	case fails:
		return nil, fault.New(fault.Internal, nodeFailed)
	}
	f := message.File{
		Ref:  message.OutputRef{Node: "9", Kind: "images", Type: "output", Prefix: id, Ext: ".png"},
		Data: picture(id, body),
	}
	f.Ref.Bytes, f.Ref.CRC32C = len(f.Data), message.Checksum(f.Data)
	return &jobs.Outcome{Files: []message.File{f}, Metrics: map[string]any{"model": "m"}}, nil
}

// picture is what a job with a body draws.
func picture(id, body string) []byte { return []byte("picture of " + id + " with " + body) }
