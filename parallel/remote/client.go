package remote

import (
	"bufio"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/fault"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
	"patchbay/parallel/scope"
)

// Process is a process of ranks as the leader sees it. It implements process.Process and is safe for concurrent use.
type Process struct {
	name            string
	conn            net.Conn
	why             func() error // returns why the process has ended
	address         string
	places          int
	site            hardware.Site
	nccl            string // version that the process can exchange by
	uninterruptible bool   // its exchanges are not interruptible
	run             *scope.Scope
	ended           chan struct{} // closed when the connection has ended

	sending sync.Mutex // guards out
	out     *bufio.Writer

	mu      sync.Mutex // guards the fields below
	next    uint64
	waiting map[uint64]func(answer)
	crew    *subteam
	heard   time.Time // time of the last answer
	lost    error
}

// NewClient starts the protocol with a process over conn. name stands for it in errors. A process that sends nothing
// for the given time (0: Silence) counts as lost. why, if not nil, is called once the connection has ended: it
// must make sure that the process ends, and returns why it has.
func NewClient(name string, conn net.Conn, silence time.Duration, why func() error) (*Process, error) {
	return newClient(name, timedConn{conn, cmp.Or(silence, Silence)}, why)
}

func newClient(name string, conn net.Conn, why func() error) (*Process, error) {
	c := &Process{
		name: name, conn: conn, why: why, run: scope.New(nil), out: bufio.NewWriterSize(conn, buffered),
		waiting: map[uint64]func(answer){}, ended: make(chan struct{}),
	}
	c.run.Go("answers of "+name, func() error { c.read(); return nil })
	c.run.Every("pulse", time.Second, c.ended, func() {
		_ = c.post(&call{Alive: true}, nil) // a heartbeat; read ends if the process has
	})
	a, err := c.ask(&call{Hello: &hello{Version}})
	if err != nil {
		c.Close()
		return nil, err
	}
	if err := a.Site.Check(a.Places); err != nil {
		c.Close()
		return nil, fmt.Errorf("the rates of its devices: %w", err)
	}
	c.address, c.places, c.site, c.nccl, c.uninterruptible = a.Address, a.Places, a.Site, a.NCCL, a.Uninterruptible
	return c, nil
}

// apartError says that a process cannot connect to the others.
type apartError struct {
	client *Process
	cause  error
}

func (e *apartError) Error() string {
	return e.client.name + " does not meet the others: " + e.cause.Error()
}

func (e *apartError) Unwrap() error { return e.cause }

// Exchange says how ranks on GPUs of several processes exchange.
type Exchange uint8

// The ways. Ranks on CPUs always exchange through host memory.
const (
	ByBest Exchange = iota // by NCCL if all processes have the same version of it, else through host memory
	ByHost                 // through host memory
	ByNCCL                 // by NCCL; Meet fails if they cannot
)

// nccl reports whether processes exchange by NCCL. It returns an error if they must but cannot.
func (by Exchange) nccl(all []*Process) (bool, error) {
	if by == ByHost || len(all) < 2 {
		return false, nil
	}
	for _, c := range all {
		switch {
		case c.nccl != "" && c.nccl == all[0].nccl:
		case by == ByBest:
			return false, nil
		case c.nccl == "":
			return false, &apartError{c, errors.New("it has no NCCL to exchange by, or may not")}
		default:
			return false, &apartError{c, fmt.Errorf("it has NCCL %s, and %s has %s: install the same on both", c.nccl,
				all[0].name, all[0].nccl)}
		}
	}
	return true, nil
}

// Meet connects processes with each other, so that they can be the hosts of one engine, in this order. It fails with
// the first one that cannot; the caller must then Close all of them. With measure it returns the lowest bandwidth and
// the highest latency that one of them has.
func Meet(all []*Process, by Exchange, measure bool) (slowest Speed, err error) {
	nccl, err := by.nccl(all)
	if err != nil {
		return slowest, err
	}
	m := mesh{Token: newToken(), NCCL: nccl, Probe: measure}
	for _, c := range all {
		m.Addresses, m.Names = append(m.Addresses, c.address), append(m.Names, c.name)
	}
	connected, speeds := make(chan error, len(all)), make([]Speed, len(all))
	for i, c := range all {
		copied := m
		copied.Self = i
		c.uninterruptible = c.uninterruptible || nccl
		c.run.Go("meet", func() error {
			a, err := c.ask(&call{Mesh: &copied})
			if speeds[i] = a.Speed; err != nil {
				err = &apartError{c, err}
			}
			connected <- err
			return nil
		})
	}
	for range all {
		if err := <-connected; err != nil {
			return slowest, err
		}
	}
	for i, s := range speeds {
		if i == 0 || s.Bandwidth < slowest.Bandwidth {
			slowest.Bandwidth = s.Bandwidth
		}
		slowest.Latency = max(slowest.Latency, s.Latency)
	}
	return slowest, nil
}

// read handles answers until the connection ends.
func (c *Process) read() {
	in := msgpack.NewDecoder(bufio.NewReaderSize(c.conn, buffered))
	var err error
	for {
		var a answer
		if err = in.Decode(&a); err != nil {
			break
		}
		c.mu.Lock()
		c.heard = time.Now()
		if a.ID == 0 && c.crew != nil {
			c.crew.status = a.Status
		}
		done := c.waiting[a.ID]
		delete(c.waiting, a.ID)
		c.mu.Unlock()
		if done != nil {
			done(a)
		}
	}
	_ = c.conn.Close()
	close(c.ended)
	if c.why != nil {
		if cause := c.why(); cause != nil && errors.As(err, new(*hangError)) {
			err = fmt.Errorf("%w: %w", err, cause)
		} else if cause != nil {
			err = cause
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = fault.Wrap(fault.HostLost, "", fmt.Errorf("%s has gone: %w", c.name, err))
	for _, done := range c.waiting {
		done(answer{Err: fault.From(c.lost)})
	}
	c.waiting = nil
}

// post sends a call. done, if not nil, takes the answer; it must not block.
func (c *Process) post(q *call, done func(answer)) error {
	c.mu.Lock()
	if c.lost != nil {
		defer c.mu.Unlock()
		return c.lost
	}
	if done != nil {
		c.next++
		q.ID = c.next
		c.waiting[q.ID] = done
	}
	c.mu.Unlock()
	if err := c.write(q); err != nil {
		_ = c.conn.Close() // read finds out why
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, q.ID)
		return fault.Wrap(fault.HostLost, "", fmt.Errorf("%s cannot be reached: %w", c.name, err))
	}
	return nil
}

// write sends a call. It may block while the process reads nothing, so c.mu must not be held.
func (c *Process) write(q *call) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := msgpack.NewEncoder(c.out).Encode(q); err != nil {
		return err
	}
	return c.out.Flush()
}

// ask sends a call and waits for the answer.
func (c *Process) ask(q *call) (answer, error) {
	done := make(chan answer, 1)
	if err := c.post(q, func(a answer) { done <- a }); err != nil {
		return answer{}, err
	}
	a := <-done
	if a.Err != nil {
		return a, a.Err
	}
	return a, nil
}

func (c *Process) String() string { return c.name }

func (c *Process) Places() int { return c.places }

// Site returns what the process has reported about its devices.
func (c *Process) Site() hardware.Site { return c.site }

func (c *Process) Interruptible() bool { return !c.uninterruptible }

func (c *Process) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Acquire implements process.Process. It refuses weights that cannot be named to another process
// (encoding.BinaryMarshaler).
func (c *Process) Acquire(key string, w process.Weights, need []process.Need) (loaded bool, err error) {
	named, ok := w.(encoding.BinaryMarshaler)
	if !ok {
		return false, fault.Bad("model",
			"the weights of %s are in no file, and %s can only read files: run ranks in one process for them",
			plan.ShownKey(key), c.name)
	}
	model, err := named.MarshalBinary()
	if err != nil {
		return false, err
	}
	a, err := c.ask(&call{Acquire: &acquire{key, model, need}})
	return a.Loaded, err
}

func (c *Process) Resident() []process.Resident {
	a, _ := c.ask(&call{Resident: true}) // a process that has ended has none
	return a.Resident
}

func (c *Process) Evict(key string) { _, _ = c.ask(&call{Evict: &key}) }

// Close implements process.Process. The process ends when the connection to its leader does.
func (c *Process) Close() {
	_ = c.conn.Close()
	_ = c.run.Wait()
}

func (c *Process) Join(t process.TeamSpec) (process.Subteam, error) {
	team := &subteam{client: c, status: make([]rank.Progress, len(t.Local))}
	for i := range t.Local {
		team.members = append(team.members, &member{team, i})
	}
	c.mu.Lock()
	c.crew = team
	c.mu.Unlock()
	_, err := c.ask(&call{Join: &t})
	return team, err
}

// subteam is the members of a team in another process.
type subteam struct {
	client  *Process
	members []process.Member
	status  []rank.Progress // guarded by client.mu
}

func (w *subteam) Members() []process.Member { return w.members }

func (w *subteam) Silent() bool {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	return w.client.lost == nil && time.Since(w.client.heard) > 2*pulse
}

func (w *subteam) Close() <-chan struct{} {
	ended := make(chan struct{})
	w.client.run.Go("end of members", func() error {
		defer close(ended)
		_, _ = w.client.ask(&call{Leave: true}) // members of a process that has ended have too
		return nil
	})
	return ended
}

// member is one rank in a process.
type member struct {
	*subteam
	at int // place in Team.Local
}

func (m *member) Send(c rank.Command) (<-chan rank.Reply, error) {
	done := make(chan rank.Reply, 1)
	err := m.client.post(&call{Command: &command{m.at, c}}, func(a answer) {
		r := rank.Reply{Err: a.Err}
		if a.Reply != nil {
			r = *a.Reply
		}
		done <- r
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

func (m *member) Cancel(session uint64) { m.tell(&call{Cancel: &cancel{m.at, session}}) }

func (m *member) Abort(cause error) { m.tell(&call{Abort: &abort{m.at, cause.Error()}}) }

// tell sends a call without an answer. It ignores errors: a process that has ended needs no call.
func (m *member) tell(q *call) { _ = m.client.post(q, nil) }

// Progress implements process.Member, as of the last status report.
func (m *member) Progress() rank.Progress {
	m.client.mu.Lock()
	defer m.client.mu.Unlock()
	return m.status[m.at]
}
