package sim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/register"
	"patchbay/ipc/serve"
	"patchbay/ipc/web"
	"patchbay/ipc/worker"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/parallel/resume"
	"patchbay/tests/bubble"
)

// node is a daemon: its store, table, outputs, dispatcher, service, carriers and supervisors of workers, whose
// evaluations are numbers.
type node struct {
	w       *world
	name    string
	dir     string // the folder of its files
	oracle  *oracle
	clock   time.Duration // how far its clock is ahead
	browser *http.Client  // of all clients

	mu      sync.Mutex
	cables  map[*cable]bool // to workers and clients
	accept  func(*cable)    // serves a client of its socket; nil: it listens no more
	port    *bubble.Port    // where it is asked over HTTP
	signals chan os.Signal  // which it gets
	ended   time.Time       // when it was last told to end, for its table
	lived   chan struct{}   // closed when it has ended
	table   *jobs.Table     // nil: it is down
	life    context.Context // of that table
	until   time.Time       // cut off from the server until then
	dead    bool
	paused  time.Time     // when it said that it begins no job; zero: it may begin one
	turn    chan struct{} // semaphore of one: its holder pauses the daemon

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

func (n *node) setPaused(since time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paused = since
}

// taking bounds how long after it was paused a daemon may begin with a job that it was taking, if it can write that it
// has taken it.
const taking = 5 * time.Second

// pausedFor returns for how long the daemon may have begun no job; 0: it may begin one.
func (n *node) pausedFor() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paused.IsZero() {
		return 0
	}
	return max(0, min(time.Since(n.paused), time.Since(n.w.lastTrouble()))-taking)
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
	if n.cables == nil {
		n.cables = map[*cable]bool{}
	}
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
	carrier, err := serve.ConnectNATS(serve.NATSConfig{
		URL: "nats://sim", InProcess: way{n.w, n}, Version: "1.0.0", Owner: n.name, Log: log,
	})
	if err != nil {
		return err
	}
	closes = append(closes, carrier.Close)
	outputs, err := jobs.NewOutputs(jobs.OutputsConfig{
		Stage: n.folder("stage"), Output: n.folder("output"), Keep: true, Log: log,
	})
	if err != nil {
		return err
	}
	if err := store.Machines().Alone(ctx); err != nil {
		return err
	}
	door := bubble.NewPort()
	api, err := web.Listen(web.Config{
		Listener: door, Keep: n.folder("history"), Log: log, Roots: files.Roots{Output: n.folder("output")},
	})
	if err != nil {
		return err
	}
	closes = append(closes, api.Close)
	clock, logs := n.clock, n.evaluations("")
	table := jobs.New(store.On(jobs.Config{
		Now: func() time.Time { return time.Now().Add(clock) }, Log: log, Keep: 1 << 30, PauseFile: n.folder("paused"),
		MaxQueued: cmp.Or(n.w.plan.queue, 1<<20), MaxPerClient: n.w.plan.perClient, OnPreview: carrier.Preview,
		OnEvent: func(ev message.Event) {
			carrier.Event(ev)
			api.Event(ev)
			if message.Terminal(ev.Type) {
				go logs.Forget(ev.Job)
			}
		},
		OnForget: func(job string) { outputs.Forget(job); api.Forget(job) },
	}))
	if err := table.Open(ctx); err != nil {
		return err
	}
	logs.Sweep(table.Pending)
	signals, lived, listens := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	life := serve.Life{
		Carriers: []serve.Carrier{carrier, api, socket{n, listens}}, Drain: n.w.plan.drain, GiveUp: store.GiveUp,
	}
	var workers []jobs.Executor
	for _, name := range []string{"w0", "w1"} {
		child := worker.NewChild(worker.ChildConfig{
			Name: name, Log: log, Spawn: func() (worker.Program, io.ReadWriteCloser, error) { return n.spawn(name) },
		})
		workers = append(workers, child)
		life.Beside = append(life.Beside, child.Supervise)
	}
	classes := serve.Classes{Validate: func(_ *message.RunRequest, w *graph.Workflow) ([]string, map[string]any, error) {
		return w.IDs(), nil, nil
	}}
	service := serve.NewService(serve.ServiceConfig{
		Jobs: table, Outputs: outputs, Executors: workers, Log: log, Fetch: carrier.Fetch, Classes: classes,
	})
	api.On(table, classes)
	life.Beside = append(life.Beside, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-store.Machines().Rival():
			n.w.note("%s gives way to another daemon of its name", n.dir)
			go n.yield()
		}
		return nil
	})
	closes = append(closes, func() { end(); <-lived })
	go func() {
		defer close(lived)
		err := service.Live(ctx, signals, life)
		select {
		case <-listens:
			if err != nil && ctx.Err() == nil {
				n.w.violated("%s ends: %v", n.name, err)
			}
		default:
			n.w.note("%s cannot start: %v", n.dir, err)
		}
	}()
	select {
	case <-listens:
	case <-lived:
		return errors.New("it cannot start")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	n.table, n.port, n.life, n.signals, n.lived, n.ended = table, door, ctx, signals, lived, time.Time{}
	n.end = func() {
		<-lived
		store.Close()
	}
	return nil
}

// evaluations is where the workers of the daemon keep those of a job.
func (n *node) evaluations(job string) *resume.Folder {
	return &resume.Folder{Root: n.folder("resume"), Name: job, Most: 1 << 30, Dropped: func(err error) {
		n.w.violated("the evaluations of %s at %s are dropped: %v", job, n.name, err)
	}}
}

// socket is the carrier of the programs on the daemon's machine.
type socket struct {
	n       *node
	listens chan struct{} // closed when it does
}

func (socket) Name() string { return "socket" }

func (s socket) Serve(ctx, drain context.Context, service *serve.Service) error {
	var conns sync.WaitGroup
	accept := func(c *cable) {
		conns.Go(func() {
			defer c.cut()
			_ = (&serve.Stdio{In: c.near, Out: c.near}).Serve(ctx, drain, service.Answerer)
			s.n.mu.Lock()
			defer s.n.mu.Unlock()
			delete(s.n.cables, c)
		})
	}
	s.n.mu.Lock()
	s.n.accept = accept
	s.n.mu.Unlock()
	close(s.listens)
	<-ctx.Done()
	s.n.mu.Lock()
	s.n.accept = nil
	s.n.mu.Unlock()
	conns.Wait()
	return nil
}

// terminate tells the daemon to end in order, and waits until it has. It reports false if the daemon is down, or dies
// meanwhile.
func (n *node) terminate() bool {
	n.mu.Lock()
	table, lived := n.table, n.lived
	if table != nil && n.ended.IsZero() {
		n.ended = time.Now()
		n.signals <- syscall.SIGTERM
	}
	n.mu.Unlock()
	if table == nil {
		return false
	}
	<-lived
	n.mu.Lock()
	mine, end := n.table == table, n.end
	if mine {
		n.table = nil
	}
	n.mu.Unlock()
	if mine {
		n.die()
		end()
	}
	return mine
}

// ending reports whether the daemon was told to end, and for how long it has known.
func (n *node) ending() (since time.Duration, ending bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Since(n.ended), !n.ended.IsZero()
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
	giveUp, cables := n.giveUp, n.cables
	n.cables = map[*cable]bool{}
	n.mu.Unlock()
	n.cut()
	giveUp()
	for c := range cables {
		c.cut()
	}
}

// dial returns a connection to the socket of the daemon.
func (n *node) dial() (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.table == nil || n.dead || n.accept == nil {
		return nil, &net.OpError{Op: "dial", Net: "sim", Err: syscall.ECONNREFUSED}
	}
	c := newCable()
	n.cables[c] = true
	n.accept(c)
	return c.far, nil
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
