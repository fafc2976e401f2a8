package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// mostGreeted bounds the connections whose other side has not proved yet that it has the key.
const mostGreeted = 64

// strangers are the connections whose other side has not proved yet that it has the key, in the order they came.
type strangers struct {
	mu   sync.Mutex
	list []net.Conn
}

// add notes a new connection. If there are too many, it closes the one that has been silent for longest: whoever has
// the key proves it within milliseconds, so that silent connections, however many come, keep no machine of the cluster
// out.
func (s *strangers) add(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list = append(s.list, c); len(s.list) > mostGreeted {
		_ = s.list[0].Close()
		s.list = s.list[1:]
	}
}

// remove forgets a connection: its other side is known, or it has ended.
func (s *strangers) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(other net.Conn) bool { return other == c })
}

// Listener offers a machine to leaders, one at a time.
type Listener struct {
	Network Network
	Offer   Config // without Listen and Dial
	// Say, if not nil, is called when a leader comes or goes, or a connection is refused. Hung is called if ranks have
	// not ended long after their leader: then only the end of the process helps.
	Say  func(who net.Addr, what string, cause error)
	Hung func(cause error)

	peers  *peers
	mu     sync.Mutex
	leader string // leader that is served, "" if none is
	conns  map[net.Conn]bool
	ended  bool
}

// Serve takes connections from l until ctx is done, and closes those that are left.
func (s *Listener) Serve(ctx context.Context, l net.Listener) {
	s.peers = &peers{address: l.Addr(), come: make(chan net.Conn, mostGreeted)}
	s.Offer.Listen = s.peers
	s.Offer.Dial = func(address string) (net.Conn, error) { return s.Network.dialHost(ctx, address) }
	defer context.AfterFunc(ctx, func() { s.close(l) })()
	var all sync.WaitGroup
	var unknown strangers
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				break
			}
			time.Sleep(100 * time.Millisecond) // e.g. no file descriptors are left
			continue
		}
		unknown.add(conn)
		all.Go(func() {
			leads := false
			c, purpose, err := s.Network.Accept(ctx, conn, func(p Purpose) string {
				unknown.remove(conn)
				no := s.admit(p)
				leads = no == "" && p == ToLead
				return no
			})
			unknown.remove(conn)
			if err != nil {
				if leads {
					s.free()
				}
				s.say(conn.RemoteAddr(), "a connection was refused", err)
				return
			}
			s.take(c, purpose)
		})
	}
	s.close(l)
	all.Wait()
	s.peers.drop()
}

func (s *Listener) say(who net.Addr, what string, cause error) {
	if s.Say != nil {
		s.Say(who, what, cause)
	}
}

func (s *Listener) close(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	_ = l.Close()
	for c := range s.conns {
		_ = c.Close()
	}
}

// admit returns why a connection is refused, "" if it is not. There is one leader at a time; a new one waits a moment
// for the previous one to end.
func (s *Listener) admit(p Purpose) string {
	end := time.Now().Add(min(greeting/2, s.Network.Patience()/4))
	for p == ToLead && s.busy() && time.Now().Before(end) {
		time.Sleep(greeting / 500)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if (p == ToLead || p == ToLook) && s.leader != "" {
		return "it works for " + s.leader
	}
	if p == ToLead {
		s.leader = "a leader that is just coming"
	}
	return ""
}

func (s *Listener) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader != ""
}

// free lets the next leader in.
func (s *Listener) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = ""
}

// take uses a connection for its purpose.
func (s *Listener) take(c net.Conn, purpose Purpose) {
	switch purpose {
	case ToLead:
		s.lead(c)
	case toMatch:
		s.peers.add(c)
	default:
		_ = c.Close()
	}
}

// lead serves a leader until it is gone.
func (s *Listener) lead(c net.Conn) {
	who := c.RemoteAddr()
	s.mu.Lock()
	s.leader = who.String()
	if s.conns == nil {
		s.conns = map[net.Conn]bool{}
	}
	s.conns[c] = true
	ended := s.ended
	s.mu.Unlock()
	if ended {
		_ = c.Close()
	}
	s.say(who, "a leader has come", nil)
	heard := &ending{Conn: c, over: func() *time.Timer {
		return time.AfterFunc(s.Network.Patience(), func() {
			s.Hung(fmt.Errorf("ranks of leader %s have not ended %v after it has gone", who, s.Network.Patience()))
		})
	}}
	err := Serve(heard, s.Offer)
	heard.stop()
	_ = c.Close()
	s.peers.drop()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.free()
	s.say(who, "the leader has gone", err)
}

// ending is a connection that starts a timer once reading has failed.
type ending struct {
	net.Conn
	once  sync.Once
	over  func() *time.Timer
	timer *time.Timer
}

func (e *ending) Read(b []byte) (int, error) {
	n, err := e.Conn.Read(b)
	if err != nil {
		e.once.Do(func() { e.timer = e.over() })
	}
	return n, err
}

func (e *ending) stop() {
	if e.timer != nil {
		e.timer.Stop()
	}
}

// peers is a net.Listener of connections from other hosts that have been greeted.
type peers struct {
	address net.Addr
	come    chan net.Conn
	mu      sync.Mutex
	until   time.Time
}

// add queues a connection until it is accepted.
func (p *peers) add(c net.Conn) {
	select {
	case p.come <- c:
	default:
		_ = c.Close() // the queue is full: no mesh is being made
	}
}

// drop closes connections that have not been accepted.
func (p *peers) drop() {
	for {
		select {
		case c := <-p.come:
			_ = c.Close()
		default:
			return
		}
	}
}

// SetDeadline bounds Accept.
func (p *peers) SetDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = t
	return nil
}

func (p *peers) Accept() (net.Conn, error) {
	p.mu.Lock()
	until := p.until
	p.mu.Unlock()
	select {
	case c := <-p.come:
		return c, nil
	case <-time.After(time.Until(until)):
		return nil, errors.New("they have not connected in time")
	}
}

func (p *peers) Close() error { return nil }

func (p *peers) Addr() net.Addr { return p.address }
