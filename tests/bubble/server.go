package bubble

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Server is a nats-server in the process of the test, without a listener: it implements nats.InProcessConnProvider.
type Server struct {
	Conf string // its configuration file
	URL  string // for clients, which use it only to name the server

	t     testing.TB
	mu    sync.Mutex
	inner *server.Server    // nil: it is down
	dir   string            // of JetStream; empty: it has none
	conns map[net.Conn]bool // to the server and to its clients
}

// Start runs a server with the given configuration. The server ends with the test.
func Start(t testing.TB, conf ...string) *Server {
	t.Helper()
	s := New(t, conf...)
	s.Start()
	return s
}

// New returns a server that is not started yet.
func New(t testing.TB, conf ...string) *Server {
	t.Helper()
	s := &Server{
		Conf: filepath.Join(t.TempDir(), "nats.conf"), URL: "nats://bubble", t: t, conns: map[net.Conn]bool{},
	}
	if err := os.WriteFile(s.Conf, []byte(strings.Join(conf, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Start starts the server on the files that the last one left.
func (s *Server) Start() {
	opts := &server.Options{}
	err := opts.ProcessConfigFile(s.Conf)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", s.Conf, err))
	}
	opts.ServerName, opts.DontListen, opts.NoSigs = "bubble", true, true
	opts.NoLog, opts.DisableJetStreamBanner = true, true
	inner, err := server.NewServer(opts)
	if err != nil {
		panic(err)
	}
	inner.Start()
	if !inner.ReadyForConnections(time.Minute) {
		panic("the NATS server does not get ready")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inner, s.dir = inner, opts.StoreDir
}

// Close ends the server as its operator does: it writes down what it holds.
func (s *Server) Close() { s.end(func(string) {}, func(string) {}) }

// Kill ends the server as a crash does: its files are what it had written while it ran.
func (s *Server) Kill() {
	s.end(func(dir string) {
		Copy(dir, dir+".killed")
	}, func(dir string) {
		if err := errors.Join(os.RemoveAll(dir), os.Rename(dir+".killed", dir)); err != nil {
			panic(err)
		}
	})
}

// end ends the server. It calls before and after with the folder of its files, if there is one.
func (s *Server) end(before, after func(dir string)) {
	s.mu.Lock()
	inner, dir, conns := s.inner, s.dir, s.conns
	s.inner, s.conns = nil, map[net.Conn]bool{}
	s.mu.Unlock()
	if inner == nil {
		return
	}
	for c := range conns { // first: what is written from now on, nobody hears of
		_ = c.Close()
	}
	if dir != "" {
		before(dir)
	}
	inner.Shutdown()
	inner.WaitForShutdown()
	time.Sleep(time.Millisecond) // what it has not waited for has ended too
	if dir != "" {
		after(dir)
	}
}

// Copy copies a folder whose files may change or go meanwhile.
func Copy(from, to string) {
	_ = filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(from, path)
		if err != nil || relErr != nil {
			return nil //nolint:nilerr // it is gone
		}
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		if b, err := os.ReadFile(path); err == nil {
			return os.WriteFile(filepath.Join(to, name), b, 0o600)
		}
		return nil
	})
}

// InProcessConn returns a connection to the server.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inner == nil {
		return nil, errors.New("the NATS server is down")
	}
	serverEnd, err := s.inner.InProcessConn()
	if err != nil {
		return nil, err
	}
	client, clientEnd := net.Pipe()
	s.conns[serverEnd], s.conns[clientEnd] = true, true
	go s.carry(serverEnd, clientEnd)
	go s.carry(clientEnd, serverEnd)
	return client, nil
}

// Arrivals returns what arrives at a connection, and holds it until it is read: who writes there does not wait.
func Arrivals(from net.Conn) <-chan []byte {
	in := make(chan []byte, 1<<14)
	go func() {
		defer close(in)
		for b := make([]byte, 64<<10); ; {
			n, err := from.Read(b)
			if n > 0 {
				in <- bytes.Clone(b[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return in
}

// carry copies what arrives at one end to the other, and then closes that. It holds nobody back: nats.go keeps a lock
// while it waits for the server.
func (s *Server) carry(to, from net.Conn) {
	var err error
	for b := range Arrivals(from) {
		if err == nil {
			_, err = to.Write(b)
		}
	}
	_ = to.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, to)
}
