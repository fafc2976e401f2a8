package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/stream"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/scope"
)

// pulse is how often a process reports where its members are.
const pulse = 200 * time.Millisecond

// server is the ranks' side of a connection to a leader.
type server struct {
	Config
	mesh *stream.Mesh
	over comm.Transport  // of the ranks: on mesh, or NCCL
	end  func() error    // releases over
	run  *scope.Scope    // pulses, and waits for members
	led  context.Context // done once the connection to the leader has ended

	crew process.Subteam // guarded by mu
	mu   sync.Mutex
	out  *bufio.Writer
}

// Config configures what a process offers to its leader.
type Config struct {
	Host *process.Local // outlives the leader, and so do its resident weights
	// Site is the rates and memory of its devices, by place; zero: not known, or as the leader's.
	Site hardware.Site
	// Open finds weights by the bytes that MarshalBinary of a process.Weights returned. key is the leader's name for them.
	Open func(key string, model []byte) (process.Weights, error)
	// Listen accepts connections of the leader's other processes; it must not be nil. Dial connects to them; nil: they
	// are on this machine.
	Listen net.Listener
	Dial   func(address string) (net.Conn, error)
	// Within connects groups whose ranks are all in this process, unless NCCL does; nil: the mesh does.
	Within comm.Transport
	// NCCL is the version of NCCL by which ranks here may exchange with those of other processes, "": they may not.
	// Over makes the transport for it on top of the connections of the processes, and a function that releases it.
	NCCL string
	Over func(mesh comm.Transport) (comm.Transport, func() error)
}

// Serve runs ranks for the leader at the other end of conn until the connection ends. It returns why the connection was
// given up, nil if the leader closed it.
func Serve(conn io.ReadWriter, cfg Config) error {
	if cfg.Listen == nil {
		return errors.New("serve ranks: Config.Listen is nil, want a listener for the other processes")
	}
	led, stop := context.WithCancel(context.Background())
	s := &server{Config: cfg, run: scope.New(nil), out: bufio.NewWriterSize(conn, buffered), led: led}
	if s.Dial == nil {
		s.Dial = dialUnix
	}
	s.run.Every("pulse", pulse, led.Done(), s.pulse)
	in := msgpack.NewDecoder(bufio.NewReaderSize(conn, buffered))
	var err error
	for {
		var c call
		if err = in.Decode(&c); err != nil {
			break
		}
		s.take(&c)
	}
	stop()
	if s.mesh != nil {
		s.mesh.Close() // ends what waits for other processes
	}
	s.leave()
	_ = s.run.Wait()
	s.leave() // a crew that was just joining
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if s.end != nil {
		err = errors.Join(err, s.end())
	}
	return err
}

// part ends the members and the connections to other processes.
func (s *server) part() (err error) {
	s.leave()
	if s.mesh != nil {
		s.mesh.Close()
	}
	if s.end != nil {
		err = s.end()
	}
	s.mesh, s.over, s.end = nil, nil, nil
	return err
}

// take handles a call. Commands are answered when they are done.
func (s *server) take(c *call) {
	switch {
	case c.Alive:
		return
	case c.Leave, c.Join != nil, c.Clock != nil:
		// these wait for other processes, and must not block reading from the leader
		s.run.Go("members", func() error { s.reply(c); return nil })
		return
	}
	s.reply(c)
}

// reply executes a call and answers it.
func (s *server) reply(c *call) {
	var a answer
	err := scope.Recovered("rank process", func() error { return s.handle(c, &a) })
	if err != nil {
		a = answer{Err: scope.AsError(err)}
	} else if c.Command != nil {
		return
	}
	a.ID = c.ID
	if a.ID != 0 {
		s.send(&a)
	}
}

func (s *server) send(a *answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if msgpack.NewEncoder(s.out).Encode(a) == nil {
		_ = s.out.Flush() // on an error Serve ends
	}
}

func (s *server) handle(c *call, a *answer) (err error) {
	if c.Hello == nil && c.Mesh == nil && s.mesh == nil {
		return fmt.Errorf("a call before the processes have met")
	}
	switch {
	case c.Hello != nil:
		if c.Hello.Version != Version {
			return fmt.Errorf("the leader speaks version %d of the protocol of ranks, this process %d: start both from one "+
				"build", c.Hello.Version, Version)
		}
		a.Address, a.Places = s.Listen.Addr().Network()+":"+s.Listen.Addr().String(), s.Host.Places()
		a.Site, a.NCCL = s.Site, s.NCCL
		a.Uninterruptible = s.Within != nil && s.Host.Places() > 1 && !s.Within.Interruptible()
	case c.Mesh != nil:
		if err := s.part(); err != nil { // disconnects the processes it was connected with before
			return err
		}
		a.Speed, err = s.meet(c.Mesh)
		return err
	case c.Acquire != nil:
		var w process.Weights
		if w, err = s.Open(c.Acquire.Key, c.Acquire.Model); err == nil {
			a.Loaded, err = s.Host.Acquire(c.Acquire.Key, w, c.Acquire.Need)
		}
	case c.Join != nil:
		s.leave()
		var crew process.Subteam
		if crew, err = s.Host.JoinOver(s.over, *c.Join); err == nil {
			s.mu.Lock()
			s.crew = crew
			s.mu.Unlock()
		}
	case c.Leave:
		s.leave()
	case c.Clock != nil:
		return s.clock(c.Clock, a)
	case c.Evict != nil:
		s.Host.Evict(*c.Evict)
	case c.Resident:
		a.Resident = s.Host.Resident()
	case c.Command != nil:
		return s.member(c.Command.Member, func(m process.Member) error { return s.command(c.ID, m, c.Command) })
	case c.Cancel != nil:
		return s.member(c.Cancel.Member, func(m process.Member) error {
			m.Cancel(c.Cancel.Session)
			return nil
		})
	case c.Abort != nil:
		return s.member(c.Abort.Member, func(m process.Member) error {
			m.Abort(fault.New(fault.PeerLost, "%s", c.Abort.Cause))
			return nil
		})
	}
	return err
}

// meet connects this process with the others, and measures their connections if m asks for it.
func (s *server) meet(m *mesh) (speed Speed, err error) {
	if m.NCCL && s.Over == nil {
		return speed, fmt.Errorf("the leader has ranks exchange by NCCL, which this process does not")
	}
	if s.mesh, speed, err = m.connect(s.Listen, s.Dial); err != nil {
		return speed, err
	}
	s.over = s.mesh
	if s.Within != nil {
		s.over = nested{s.mesh, s.Within}
	}
	if m.NCCL {
		s.over, s.end = s.Over(s.over)
	}
	return speed, nil
}

// nested connects groups whose ranks are all in this process by a transport of their own.
type nested struct {
	comm.Transport
	within comm.Transport
}

func (n nested) Connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	if slices.Contains(ops, nil) {
		return n.Transport.Connect(g, ops)
	}
	return n.within.Connect(g, ops)
}

func (s *server) member(at int, f func(process.Member) error) error {
	all := s.members()
	if at < 0 || at >= len(all) {
		return fmt.Errorf("a call for member %d, which is not here", at)
	}
	return f(all[at])
}

// members returns the ranks that run here now.
func (s *server) members() []process.Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crew == nil {
		return nil
	}
	return s.crew.Members()
}

// command sends a command to a member, and answers id when it is done.
func (s *server) command(id uint64, m process.Member, c *command) error {
	wait, err := m.Send(c.Command)
	if err != nil {
		return err
	}
	s.run.Go("reply", func() error {
		r := <-wait
		s.send(&answer{ID: id, Reply: &r})
		return nil
	})
	return nil
}

// leave ends the members.
func (s *server) leave() {
	s.mu.Lock()
	crew := s.crew
	s.crew = nil
	s.mu.Unlock()
	if crew != nil {
		<-crew.Close()
	}
}

// pulse reports where the members are.
func (s *server) pulse() {
	var a answer // sent without members too, as a sign of life
	for _, m := range s.members() {
		a.Status = append(a.Status, m.Progress())
	}
	s.send(&a)
}
