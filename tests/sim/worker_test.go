package sim

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/worker"
	"patchbay/tests/bubble"
)

// cable is a link between a daemon and a program beside it, a worker or a client: a socket in memory.
type cable struct {
	near, far net.Conn // the daemon's end, and the other

	mu     sync.Mutex
	frozen chan struct{} // closed when the far end reads again; nil: it reads
	once   sync.Once
	inner  [2]net.Conn
}

func newCable() *cable {
	c := &cable{}
	near, a := net.Pipe()
	b, far := net.Pipe()
	c.near, c.far, c.inner = bubble.End(near), bubble.End(far), [2]net.Conn{a, b}
	go c.carry(a, b)
	go c.carry(b, a)
	return c
}

// carry copies what arrives at one end to the other, and closes both once one is closed and all of it has arrived.
func (c *cable) carry(from, to net.Conn) {
	defer c.cut()
	for b := range bubble.Arrivals(from) {
		if to == c.inner[1] {
			c.thaws()
		}
		if _, err := to.Write(b); err != nil {
			return
		}
	}
}

// thaws waits until the far end reads.
func (c *cable) thaws() {
	c.mu.Lock()
	frozen := c.frozen
	c.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

// freeze makes the far end read nothing until thaw is called.
func (c *cable) freeze() (thaw func()) {
	frozen := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = frozen
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.frozen = nil
		close(frozen)
	})
}

func (c *cable) cut() {
	c.once.Do(func() { _, _ = c.inner[0].Close(), c.inner[1].Close() })
}

// process is a worker process, in goroutines.
type process struct {
	name  string
	pid   int
	cable *cable
	gone  chan struct{} // closed when it is killed
	dead  chan struct{} // closed when nothing of it runs any more

	mu  sync.Mutex
	why string
}

// spawn starts a worker process of the daemon.
func (n *node) spawn(name string) (worker.Program, io.ReadWriteCloser, error) {
	p := &process{name: n.dir + " " + name, cable: newCable(), gone: make(chan struct{}), dead: make(chan struct{})}
	n.mu.Lock()
	n.w.pids.Add(1)
	p.pid = int(n.w.pids.Load())
	n.cables[p.cable] = true
	n.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		<-p.gone
		stop()
	}()
	go func() {
		defer close(p.dead)
		defer func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.cables, p.cable)
		}()
		defer p.Kill("it exited")
		_ = worker.Run(ctx, ctx, p.cable.far, p.cable.far, worker.Config{
			Executor: &executor{n: n, name: name, process: p}, Private: true, Log: zerolog.Nop(),
			Exit: func(int) { p.Kill("it exited in the middle of its work") },
		})
	}()
	return p, p.cable.near, nil
}

func (p *process) PID() int { return p.pid }

func (p *process) Dead() <-chan struct{} { return p.dead }

func (p *process) Kill(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == "" {
		p.why = why
		p.cable.cut()
		close(p.gone)
	}
}

func (p *process) Cause() *fault.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fault.New(fault.WorkerLost, "%s (pid %d) was lost: %s", p.name, p.pid, p.why)
}

func (p *process) Within(limit time.Duration, why string) {
	select {
	case <-p.dead:
	case <-time.After(limit):
		p.Kill(why)
		<-p.dead
	}
}

// executor is what runs jobs in a worker process. Its evaluations are numbers. What the plan has in store for an
// attempt happens to it.
type executor struct {
	jobs.Executor
	n       *node
	name    string
	process *process
}

// The words of failures that workers make up, and of those of which they are the reason; any other failure of a job is
// a violation.
const (
	workerDied = "the worker died by chance"
	nodeFailed = "the node failed by chance"
	workerHung = "it hung"
	noStop     = "it did not stop a cancelled job"
)

func (e *executor) Name() string { return e.name }

func (e *executor) Ready(ctx context.Context) error { return ctx.Err() }

func (e *executor) Run(ctx context.Context, task jobs.Task, sink jobs.Sink) (*jobs.Outcome, error) {
	w, id, body := e.n.w, task.Req.ID, string(task.Req.Inputs["x"])
	ends, stopped, hears := e.n.oracle.runs(e.n, id, body, task.Attempt), false, false
	defer func() { ends(stopped, hears) }()
	sink.Event(message.Event{Type: message.EventStart, Data: map[string]any{}})
	takes, fate := between(w.plan.dice("run", id, task.Attempt), 20*time.Millisecond, 3*time.Second), step{}
	for _, s := range w.plan.of(numberOf(id)) {
		if s.n == task.Attempt {
			w.happened(s)
			takes, fate = max(takes, s.lasts), s
		}
	}
	const steps = 4
	if fate.kind == hangs { // it reads nothing and does not stop
		thaw := e.process.cable.freeze()
		select {
		case <-time.After(takes):
		case <-e.process.gone:
		}
		thaw()
		takes = steps * time.Millisecond
	}
	log := e.n.evaluations(id).Open(sha256.Sum256([]byte(body)))
	defer log.Close()
	death := -1
	if fate.kind == dies {
		death = w.plan.dice("death", id, task.Attempt).IntN(steps)
	}
	f := message.File{
		Ref:  message.OutputRef{Node: "9", Kind: "images", Type: "output", Prefix: id, Ext: ".png"},
		Data: picture(id, body),
	}
	f.Ref.Bytes, f.Ref.CRC32C = len(f.Data), message.Checksum(f.Data)
	// a node in the middle saves it, or it comes with the outcome
	saves := w.plan.dice("saves", id, task.Attempt).IntN(steps + 1)
	save := func() {
		sink.File(f)
		sink.Event(message.Event{Type: message.EventExecuted, Node: "9", Data: map[string]any{"node": "9"}})
	}
	for i := range steps {
		if i == saves {
			save()
		}
		if kept := log.Next(1); kept != nil {
			e.n.oracle.resumes(e.n, id, i, kept[0] == evaluation(body, i))
			continue
		}
		e.n.oracle.computes(e.n, id, body, task.Attempt, i)
		select {
		case <-time.After(takes / steps):
		case <-ctx.Done():
			stopped = e.alive()
			return nil, context.Cause(ctx)
		}
		if i == death {
			e.process.Kill(workerDied)
			return nil, ctx.Err()
		}
		log.Add([]float32{evaluation(body, i)})
		e.n.oracle.keeps(e.n, id, body, i)
		sink.Event(message.Event{Type: message.EventProgress, Data: map[string]any{"value": i + 1}})
	}
	hears = fate.kind != hangs
	if fate.kind == dies { // the evaluation at which it was to die was kept
		e.process.Kill(workerDied)
		return nil, ctx.Err()
	}
	if fate.kind == fails {
		return nil, fault.New(fault.Internal, nodeFailed)
	}
	return &jobs.Outcome{Files: []message.File{f}, Metrics: map[string]any{"model": "m"}}, nil
}

// alive reports whether neither the process nor the daemon is dead.
func (e *executor) alive() bool {
	e.process.mu.Lock()
	defer e.process.mu.Unlock()
	killed := slices.ContainsFunc([]string{workerDied, workerHung, noStop}, func(why string) bool {
		return strings.Contains(e.process.why, why)
	})
	return !killed && e.n.up() != nil && !e.n.cutOff()
}

// evaluation is what evaluation i of a job with a body gives.
func evaluation(body string, i int) float32 {
	sum := sha256.Sum256(fmt.Append(nil, body, i))
	return float32(binary.LittleEndian.Uint32(sum[:]) >> 8)
}

// picture is what a job with a body draws.
func picture(id, body string) []byte { return []byte("picture of " + id + " with " + body) }
