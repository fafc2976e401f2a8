package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/tests/bubble"
)

// world is what lies outside of the daemons: the NATS server and its disk, and the links to it.
type world struct {
	t    testing.TB
	plan plan
	base string // folder of all disks

	mu     sync.Mutex
	trace  strings.Builder
	began  time.Time
	server *bubble.Server
	disk   string // JetStream's folder
	links  map[*link]bool
	fuses  map[*fuse]bool
	counts map[string]int // steps by kind, and evaluations that were resumed
	bad    []string       // what the oracle found
	twins  []*node        // daemons with the name of another one
	goOn   map[string]int // what the run waits for

	troubled time.Time // when something has last kept a daemon from working
	pids     atomic.Int64
	fills    atomic.Int64   // steps that keep a store full
	readers  sync.WaitGroup // clients that follow jobs

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
		counts: map[string]int{}, goOn: map[string]int{}, disk: filepath.Join(base, "disk"), turn: make(chan struct{}, 1),
	}
	w.life, w.end = context.WithCancel(context.Background())
	w.server = bubble.Start(t, fmt.Sprintf(`max_payload: %d
jetstream { store_dir: %q, max_memory_store: %d, max_file_store: %d }`, 8<<20, w.disk, 64<<20, 8<<30))
	return w
}

// twin returns another daemon of the same name, which is not started.
func (w *world) twin(n *node) *node {
	w.mu.Lock()
	defer w.mu.Unlock()
	twin := &node{w: w, name: n.name, dir: fmt.Sprint(n.name, len(w.twins)+2), oracle: n.oracle}
	w.twins = append(w.twins, twin)
	return twin
}

// note adds a line to the trace.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintf(&w.trace, "%12.6f  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// waits notes that the run waits for something, and returns a function that notes that this is over.
func (w *world) waits(what string) (over func()) {
	add := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.goOn[what] += n; w.goOn[what] == 0 {
			delete(w.goOn, what)
		}
	}
	add(1)
	return func() { add(-1) }
}

// has reports whether a kind of step has happened.
func (w *world) has(kind string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[kind] > 0
}

// lossy reports whether the server has lost what it had acknowledged. Until a daemon writes it again, a job may be as
// it was before: an end, a cancel, a retry, a run or all of it may be forgotten, and the job begin again.
func (w *world) lossy() bool { return w.has(forget) || w.has(damage) }

// happened notes a step of the plan.
func (w *world) happened(s step) {
	w.mu.Lock()
	w.counts[s.kind]++
	w.mu.Unlock()
	w.note("%s", strings.TrimSpace(s.String()))
}

// calm reports whether nothing has kept the daemons from working since a time.
func (w *world) calm(since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.troubled.Before(since)
}

// lastTrouble returns when something has last kept a daemon from working.
func (w *world) lastTrouble() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.troubled
}

// trouble notes that something keeps a daemon from working just now.
func (w *world) trouble() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.troubled = time.Now()
}

// violated notes what no order of events may lead to.
func (w *world) violated(format string, args ...any) {
	w.mu.Lock()
	w.bad = append(w.bad, fmt.Sprintf(format, args...))
	w.mu.Unlock()
	w.note("VIOLATED: "+format, args...)
}

// stopServer ends the server. Killed, the next one finds what its files held while it ran; otherwise what it wrote as
// it ended too.
func (w *world) stopServer(killed bool) {
	for _, l := range w.linksOf(nil) {
		l.cut()
	}
	if killed {
		w.server.Kill()
	} else {
		w.server.Close()
	}
}

// link is a connection to the server that can be cut.
type link struct {
	w              *world
	node           *node // whose it is; nil: the oracle's
	daemon, server net.Conn
	once           sync.Once
	last           time.Time // when the daemon last sent something
	inARow         int       // messages that it has sent since without a pause
}

func (l *link) cut() {
	l.once.Do(func() {
		if l.node != nil {
			l.w.trouble()
		}
		_, _ = l.daemon.Close(), l.server.Close()
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		delete(l.w.links, l)
	})
}

// hasty is how many messages in a row a daemon sends without a pause only if it asks the same again and again.
const hasty = 5000

// haste notes that a message goes to the server. When no time passes between many, it is a violation, and some passes.
func (l *link) haste() {
	if now := time.Now(); now.After(l.last) {
		l.last, l.inARow = now, 0
	}
	if l.inARow++; l.inARow%hasty == 0 {
		l.w.violated("%s has sent %d messages without a pause", l.node.name, l.inARow)
		time.Sleep(time.Second)
	}
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

// carry copies what arrives at one end to the other.
func (l *link) carry(to, from net.Conn) {
	defer l.cut()
	for all := make([]byte, 64<<10); ; {
		n, err := from.Read(all)
		if err != nil {
			return
		}
		b := all[:n]
		var f *fuse
		if from == l.daemon {
			f = l.w.burns(l, b)
		}
		if f == nil || !f.lost {
			if _, err := to.Write(b); err != nil {
				l.cut()
			} else if from == l.daemon && l.node != nil {
				l.node.heard(b)
				l.haste()
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
	if p.node != nil && p.node.cutOff() {
		p.w.trouble()
		return nil, errors.New("no way to the server")
	}
	inner, err := p.w.server.InProcessConn()
	if err != nil {
		p.w.trouble()
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
