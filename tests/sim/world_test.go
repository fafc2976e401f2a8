package sim

import (
	"bytes"
	"context"
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

// world is what lies outside of the daemons: the NATS server and its disk, and the links to it.
type world struct {
	t    testing.TB
	plan plan
	base string // folder of all disks

	mu     sync.Mutex
	trace  strings.Builder
	began  time.Time
	server *server.Server // nil: it is down
	disk   string         // JetStream's folder
	disks  int            // that the server has had
	links  map[*link]bool
	fuses  map[*fuse]bool
	counts map[string]int // faults by kind
	bad    []string       // what the oracle found

	turn chan struct{}   // semaphore of one: its holder stops the server
	life context.Context // ends when all is judged
	end  func()
}

// newWorld returns a world with a running server.
func newWorld(t testing.TB, p plan) *world {
	t.Helper()
	base := t.TempDir()
	w := &world{
		t: t, plan: p, base: base, began: time.Now(), links: map[*link]bool{}, fuses: map[*fuse]bool{},
		counts: map[string]int{}, disk: filepath.Join(base, "disk0"), turn: make(chan struct{}, 1),
	}
	w.life, w.end = context.WithCancel(context.Background())
	w.startServer()
	return w
}

// note adds a line to the trace.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintf(&w.trace, "%12.6f  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// happened notes a step of the plan.
func (w *world) happened(s step) {
	w.mu.Lock()
	w.counts[s.kind]++
	w.mu.Unlock()
	w.note("%s", strings.TrimSpace(s.String()))
}

// violated notes what no order of events may lead to.
func (w *world) violated(format string, args ...any) {
	w.mu.Lock()
	w.bad = append(w.bad, fmt.Sprintf(format, args...))
	w.mu.Unlock()
	w.note("VIOLATED: "+format, args...)
}

// startServer starts a server on the current disk.
func (w *world) startServer() {
	s, err := server.NewServer(&server.Options{
		ServerName: "sim", DontListen: true, NoSigs: true, NoLog: true, MaxPayload: 8 << 20, JetStream: true,
		StoreDir: w.disk, JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 8 << 30, SyncInterval: 2 * time.Minute,
		DisableJetStreamBanner: true,
	})
	if err != nil {
		panic(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		panic("the server does not get ready")
	}
	w.mu.Lock()
	w.server = s
	w.mu.Unlock()
}

// newDisk returns a folder for a disk.
func (w *world) newDisk() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.disks++
	return filepath.Join(w.base, fmt.Sprint("disk", w.disks))
}

// stopServer ends the server. Killed, the next one finds what its files held while it ran; otherwise what it wrote as
// it ended too.
func (w *world) stopServer(killed bool) {
	old, next := w.disk, w.newDisk()
	w.mu.Lock()
	s := w.server
	w.server = nil
	w.mu.Unlock()
	if killed {
		copyTree(old, next)
	}
	for _, l := range w.linksOf(nil) {
		l.cut()
	}
	s.Shutdown()
	s.WaitForShutdown()
	if !killed {
		copyTree(old, next)
	}
	_ = os.RemoveAll(old)
	w.disk = next
}

// copyTree copies a folder whose files may change or go meanwhile.
func copyTree(from, to string) {
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

// link is a connection to the server that can be cut.
type link struct {
	w              *world
	node           *node // whose it is; nil: the oracle's
	daemon, server net.Conn
	once           sync.Once
}

func (l *link) cut() {
	l.once.Do(func() {
		_, _ = l.daemon.Close(), l.server.Close()
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		delete(l.w.links, l)
	})
}

// fuse waits for a message of a daemon. It then cuts the daemon's link, and burns.
type fuse struct {
	node  *node
	what  string // a part of the message
	left  int    // such messages, the last among them
	lost  bool   // the message does not arrive
	act   func() // what happens at that moment
	burnt chan struct{}
}

// burns reports whether a message burns a fuse, and which.
func (w *world) burns(l *link, message []byte) *fuse {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.fuses {
		if f.node != l.node || !bytes.Contains(message, []byte(f.what)) {
			continue
		}
		if f.left--; f.left == 0 {
			delete(w.fuses, f)
			return f
		}
	}
	return nil
}

// carry copies what arrives at one end to the other. It never holds it back: nats.go keeps a lock while it waits for
// the server, and waiting for a lock stops the clock of a bubble (golang/go issue 77687).
func (l *link) carry(to, from net.Conn) {
	defer l.cut()
	in := make(chan []byte, 1<<14)
	go func() {
		defer close(in)
		for b := make([]byte, 64<<10); ; {
			n, err := from.Read(b)
			if n > 0 {
				in <- bytes.Clone(b[:n])
			}
			if err != nil {
				l.cut()
				return
			}
		}
	}()
	for b := range in {
		var f *fuse
		if from == l.daemon {
			f = l.w.burns(l, b)
		}
		if f == nil || !f.lost {
			if _, err := to.Write(b); err != nil {
				l.cut()
			} else if from == l.daemon && l.node != nil {
				l.node.heard(b)
			}
		}
		if f != nil {
			l.cut()
			f.act()
			close(f.burnt)
		}
	}
}

// linksOf returns the links of a node that are up; nil: all links.
func (w *world) linksOf(n *node) (out []*link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		if n == nil || l.node == n {
			out = append(out, l)
		}
	}
	return out
}

// way is how a node reaches the server; it implements nats.InProcessConnProvider.
type way struct {
	w    *world
	node *node // nil: the oracle
}

func (p way) InProcessConn() (net.Conn, error) {
	p.w.mu.Lock()
	s := p.w.server
	p.w.mu.Unlock()
	if s == nil || p.node != nil && p.node.cutOff() {
		return nil, errors.New("no way to the server")
	}
	inner, err := s.InProcessConn()
	if err != nil {
		return nil, err
	}
	outer, daemon := net.Pipe()
	l := &link{w: p.w, node: p.node, daemon: daemon, server: inner}
	p.w.mu.Lock()
	p.w.links[l] = true
	p.w.mu.Unlock()
	go l.carry(inner, daemon)
	go l.carry(daemon, inner)
	return outer, nil
}
