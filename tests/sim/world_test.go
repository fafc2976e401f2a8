package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// world is what lies outside of the daemons: the NATS server and its disk, the links to it, and what happens by
// chance, which a seed decides.
type world struct {
	t    testing.TB
	base string // folder of all disks

	mu     sync.Mutex
	rng    *rand.Rand
	trace  strings.Builder
	began  time.Time
	server *server.Server // nil: it is down
	disk   string         // JetStream's folder
	disks  int            // that the server has had
	links  map[*link]bool
	counts map[string]int // faults by kind
	bad    []string       // what the oracle found
}

// newWorld returns a world with a running server.
func newWorld(t testing.TB, seed uint64) *world {
	t.Helper()
	base := t.TempDir()
	w := &world{
		t: t, base: base, rng: rand.New(rand.NewPCG(seed, 1)), began: time.Now(), links: map[*link]bool{},
		counts: map[string]int{}, disk: filepath.Join(base, "disk0"),
	}
	w.startServer()
	return w
}

// below returns a number from 0 to n-1.
func (w *world) below(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// chance reports true with probability p.
func (w *world) chance(p float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Float64() < p
}

// between returns a time between two others.
func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.below(int((high-low)/time.Microsecond)+1))*time.Microsecond
}

// note adds a line to the trace.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintf(&w.trace, "%12.6f  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// happened notes a fault of a kind.
func (w *world) happened(kind, format string, args ...any) {
	w.mu.Lock()
	w.counts[kind]++
	w.mu.Unlock()
	w.note(kind+": "+format, args...)
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

// stopServer ends the server. Killed, the next one finds what its files held while it ran; otherwise what it wrote as
// it ended too.
func (w *world) stopServer(killed bool) {
	w.disks++
	old, next := w.disk, filepath.Join(w.base, fmt.Sprint("disk", w.disks))
	w.mu.Lock()
	s := w.server
	w.server = nil
	w.mu.Unlock()
	if killed {
		copyTree(old, next)
	}
	w.cut(func(*link) bool { return true })
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
	client, server net.Conn
	once           sync.Once
}

func (l *link) cut() {
	l.once.Do(func() {
		_, _ = l.client.Close(), l.server.Close()
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		delete(l.w.links, l)
	})
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
		if _, err := to.Write(b); err != nil {
			l.cut()
		}
	}
}

// cut cuts the links of which a function reports true.
func (w *world) cut(these func(*link) bool) {
	for _, l := range w.open() {
		if these(l) {
			l.cut()
		}
	}
}

// open returns the links that are up.
func (w *world) open() []*link {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*link, 0, len(w.links))
	for l := range w.links {
		out = append(out, l)
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
	outer, client := net.Pipe()
	l := &link{w: p.w, node: p.node, client: client, server: inner}
	p.w.mu.Lock()
	p.w.links[l] = true
	p.w.mu.Unlock()
	go l.carry(inner, client)
	go l.carry(client, inner)
	return outer, nil
}
