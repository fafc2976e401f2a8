package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/spawn"
	"patchbay/ipc/wire"
)

// ChildConfig describes a worker process and how patient its supervisor is. Zero durations get the defaults in
// brackets.
type ChildConfig struct {
	Name    string
	Command func() *exec.Cmd // a fresh command; its stdin, stdout and stderr are set by the supervisor
	// Spawn starts a process and returns our end of the link to it; nil: it runs Command.
	Spawn   func() (Program, io.ReadWriteCloser, error)
	Log     zerolog.Logger
	Start   time.Duration // until the first answer [60 s]
	Beat    time.Duration // between heartbeats [2 s]
	Silence time.Duration // without an answer: the worker hangs and is killed [15 s]
	Grace   time.Duration // for a cancelled job to stop, then the worker is killed [15 s]
	BackOff time.Duration // before the first restart, doubled up to 10 s [100 ms]
}

// Child is an Executor in a process of its own, restarted when it dies. It is reached over a unix socket pair, which is
// stdin and stdout of the process.
type Child struct {
	cfg      ChildConfig
	restarts atomic.Int64

	mu   sync.Mutex
	proc *childProcess // nil while there is none that answers
	last *childProcess // the latest that has answered
	up   chan struct{} // closed when proc is set
}

// Program is what a Child keeps running, as spawn.Start returns it, or what stands for one in simulations.
type Program interface {
	PID() int
	Dead() <-chan struct{}                  // closed when it has ended
	Cause() *fault.Error                    // how it ended; Dead must be closed
	Kill(why string)                        // the first why becomes the cause
	Within(limit time.Duration, why string) // waits until it has ended, and kills it after a time
}

// childProcess is one of the processes that a Child has in turn.
type childProcess struct {
	Program
	client *client.FrameClient
}

// NewChild returns a child that is not running; Supervise runs it.
func NewChild(cfg ChildConfig) *Child {
	cfg.Start, cfg.Beat = cmp.Or(cfg.Start, time.Minute), cmp.Or(cfg.Beat, 2*time.Second)
	cfg.Silence, cfg.Grace = cmp.Or(cfg.Silence, 15*time.Second), cmp.Or(cfg.Grace, 15*time.Second)
	cfg.BackOff = cmp.Or(cfg.BackOff, 100*time.Millisecond)
	if cfg.Spawn == nil {
		cfg.Spawn = cfg.program
	}
	return &Child{cfg: cfg, up: make(chan struct{})}
}

func (c *Child) Name() string { return c.cfg.Name }

// PID returns the process id of the worker, 0 while there is none.
func (c *Child) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc != nil {
		return c.proc.Program.PID()
	}
	return 0
}

// Restarts returns how often the worker was lost and started again.
func (c *Child) Restarts() int { return int(c.restarts.Load()) }

// neverStarts is how often a worker may end before it has ever answered. The cause is then in its configuration or in
// the machine, and more attempts would only keep jobs waiting.
const neverStarts = 5

// Supervise keeps the worker running until ctx ends, then closes its stdin and waits for it. It gives up on a worker
// that has ended five times (neverStarts) without ever answering, and returns the last cause.
func (c *Child) Supervise(ctx context.Context) error {
	pause, lives, ever := c.cfg.BackOff, 0, false
	for ctx.Err() == nil {
		began := time.Now()
		p, err := c.start(ctx)
		if lives++; err == nil {
			ever = true
			c.set(p)
			c.watch(ctx, p)
			c.drop(p)
			p.stop(ctx.Err() != nil)
			err = p.Cause()
		}
		if ctx.Err() != nil {
			return nil
		}
		if !ever && lives == neverStarts {
			return fmt.Errorf("%s does not start: %w", c.cfg.Name, err)
		}
		if time.Since(began) > time.Minute {
			pause = c.cfg.BackOff
		}
		c.cfg.Log.Error().Err(err).Str("worker", c.cfg.Name).Dur("restart_in", pause).Msg("worker lost")
		c.restarts.Add(1)
		_ = wire.Pause(ctx, pause)
		pause = min(2*pause, 10*time.Second)
	}
	return nil
}

// program runs the command on a fresh socket pair.
func (cfg ChildConfig) program() (Program, io.ReadWriteCloser, error) {
	child, conn, err := spawn.Start(cfg.Name, cfg.Command(), 0, (*exec.Cmd).Start)
	if err != nil {
		return nil, nil, err
	}
	return child, wire.ConnOf(conn), nil
}

// start starts a process and waits for its first answer.
func (c *Child) start(ctx context.Context) (*childProcess, error) {
	program, link, err := c.cfg.Spawn()
	if err != nil {
		return nil, err
	}
	p := &childProcess{program, client.NewFrameClient(link, link, link.Close)}
	hello, cancel := context.WithTimeout(ctx, c.cfg.Start)
	defer cancel()
	if err := p.ping(hello); err != nil {
		if hello.Err() == nil { // the link is closed: the process is ending, and how it ends says why
			select {
			case <-p.Dead():
			case <-time.After(time.Second):
			}
		}
		p.Kill(fmt.Sprintf("it did not answer within %s of its start", c.cfg.Start))
		<-p.Dead()
		return nil, p.Cause()
	}
	c.cfg.Log.Info().Str("worker", c.cfg.Name).Int("pid", p.PID()).Msg("worker ready")
	return p, nil
}

// watch returns when the process has ended or closed its connection, when ctx ends, or when it has killed the process
// for not answering within Silence.
func (c *Child) watch(ctx context.Context, p *childProcess) {
	tick := time.NewTicker(c.cfg.Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.Dead():
			return
		case <-p.client.Gone():
			return
		case <-tick.C:
		}
		beat, cancel := context.WithTimeout(ctx, c.cfg.Silence)
		err := p.ping(beat)
		cancel()
		if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			p.Kill(fmt.Sprintf("it hung: no heartbeat for %s", c.cfg.Silence))
			return
		}
	}
}

func (p *childProcess) ping(ctx context.Context) error {
	r, err := p.client.Ask(ctx, message.VerbPing, "", nil)
	if err != nil {
		return err
	}
	_, err = r.One(ctx)
	return err
}

// stop closes the worker's stdin, waits two seconds if it was asked to stop and one if not, then kills it, and waits
// for its end.
func (p *childProcess) stop(asked bool) {
	_ = p.client.Close()
	limit := 2 * time.Second
	if !asked {
		limit = time.Second
	}
	p.Within(limit, "it did not exit when its stdin was closed")
}

func (c *Child) set(p *childProcess) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proc, c.last = p, p
	close(c.up)
}

// drop takes a dead process out of use. The caller of a request may notice the death before Supervise does, and a retry
// must wait for the next process.
func (c *Child) drop(p *childProcess) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc == p {
		c.proc = nil
		c.up = make(chan struct{})
	}
}

func (c *Child) Ready(ctx context.Context) error {
	_, err := c.next(ctx)
	return err
}

// next returns the process that answers, and waits if there is none; it fails only when ctx ends.
func (c *Child) next(ctx context.Context) (*childProcess, error) {
	for {
		c.mu.Lock()
		p, up := c.proc, c.up
		c.mu.Unlock()
		if p != nil {
			return p, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-up:
		}
	}
}
