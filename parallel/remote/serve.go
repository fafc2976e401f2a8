package remote

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/parallel/comm/stream"
	"patchbay/parallel/failure"
	"patchbay/parallel/group"
	"patchbay/parallel/host"
	"patchbay/parallel/rank"
)

// pulse is how often a process says where its members are.
const pulse = 200 * time.Millisecond

// server is the side of the ranks.
type server struct {
	Config
	mesh *stream.Mesh
	crew host.Crew
	run  *group.Group // waits for replies

	mu  sync.Mutex
	out *bufio.Writer
}

// Config is what a process offers to its leader.
type Config struct {
	Host *host.Local // outlives the leader, with the weights that are resident
	// Open finds weights by what MarshalBinary of a host.Weights gave. key is what the leader calls them.
	Open func(key string, model []byte) (host.Weights, error)
	// Listen is where the other processes of the leader find this one, Dial how it finds them; nil: they are on this
	// machine.
	Listen net.Listener
	Dial   func(address string) (net.Conn, error)
}

// Serve runs ranks for the leader at the other end of conn until that goes. The error is why the connection was given
// up, nil if the leader closed it.
func Serve(conn io.ReadWriter, cfg Config) error {
	s := &server{Config: cfg, run: group.New(nil), out: bufio.NewWriter(conn)}
	if s.Dial == nil {
		s.Dial = dialUnix
	}
	ended := make(chan struct{})
	s.run.Go("pulse", func() error { s.pulse(ended); return nil })
	in := msgpack.NewDecoder(conn)
	var err error
	for {
		var c call
		if err = in.Decode(&c); err != nil {
			break
		}
		s.take(&c)
	}
	close(ended)
	if s.mesh != nil {
		s.mesh.Close()
	}
	s.leave()
	_ = s.run.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// take answers a call; commands are answered when they are done.
func (s *server) take(c *call) {
	if c.Alive {
		return
	}
	var a answer
	err := group.Recovered("rank process", func() error { return s.handle(c, &a) })
	if err != nil {
		a = answer{Err: flat(group.AsError(err))}
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
		_ = s.out.Flush() // a leader that has gone ends Serve
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
	case c.Mesh != nil:
		if s.mesh != nil {
			return fmt.Errorf("the processes have met before")
		}
		s.mesh, err = c.Mesh.connect(s.Listen, s.Dial)
	case c.Acquire != nil:
		var w host.Weights
		if w, err = s.Open(c.Acquire.Key, c.Acquire.Model); err == nil {
			a.Loaded, err = s.Host.Acquire(c.Acquire.Key, w, c.Acquire.Need)
		}
	case c.Join != nil:
		s.leave()
		var crew host.Crew
		if crew, err = s.Host.JoinOver(s.mesh, *c.Join); err == nil {
			s.mu.Lock()
			s.crew = crew
			s.mu.Unlock()
		}
	case c.Leave:
		s.leave()
	case c.Evict != nil:
		s.Host.Evict(*c.Evict)
	case c.Resident:
		a.Resident = s.Host.Resident()
	default:
		return s.member(c)
	}
	return err
}

// member hands a call to a member.
func (s *server) member(c *call) error {
	at := 0
	switch {
	case c.Command != nil:
		at = c.Command.Member
	case c.Cancel != nil:
		at = c.Cancel.Member
	case c.Abort != nil:
		at = c.Abort.Member
	}
	if s.crew == nil || at < 0 || at >= len(s.crew.Members()) {
		return fmt.Errorf("a call for member %d, which is not here", at)
	}
	m := s.crew.Members()[at]
	switch {
	case c.Cancel != nil:
		m.Cancel(c.Cancel.Session)
	case c.Abort != nil:
		m.Abort(&failure.Error{Code: failure.PeerLost, Text: c.Abort.Cause})
	case c.Command != nil:
		return s.command(c.ID, m, c.Command)
	}
	return nil
}

// command queues a command of a member and answers when it is done.
func (s *server) command(id uint64, m host.Member, c *command) error {
	if e := c.Command.Evaluate; e != nil {
		var err error
		if e.Inputs, err = toFloats(c.Inputs); err != nil {
			return err
		}
	}
	wait, err := m.Send(c.Command, func(done <-chan rank.Reply) (rank.Reply, error) { return <-done, nil })
	if err != nil {
		return err
	}
	s.run.Go("reply", func() error {
		r, err := wait()
		a := answer{ID: id, Reply: &r, Outputs: toBytes(r.Outputs)}
		if err != nil {
			r = rank.Reply{Err: flat(group.AsError(err))}
		}
		r.Outputs = nil
		s.send(&a)
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

// pulse says where the members are until ended.
func (s *server) pulse(ended <-chan struct{}) {
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		crew := s.crew
		s.mu.Unlock()
		var a answer // a sign of life without members too
		if crew != nil {
			for _, m := range crew.Members() {
				var st status
				st.Moves, st.Busy, st.Place = m.Position()
				st.Waits = m.Waits()
				a.Status = append(a.Status, st)
			}
		}
		s.send(&a)
	}
}
