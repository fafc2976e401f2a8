package stream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm"
	"patchbay/parallel/scope"
)

// Mesh is one process's connections to the others with whose ranks it exchanges, and the comm.Transport of their
// groups. It is safe for concurrent use.
type Mesh struct {
	self  int
	links []*peer  // by process; nil: this process
	names []string // names of the processes
	run   *scope.Scope
	ended chan struct{} // closed by Close

	mu     sync.Mutex
	groups map[string]*members
	early  map[string][]*frame // frames of groups that are not connected here yet
	newest uint64              // newest team
	lost   map[int]error       // why connections to processes ended
}

// peer is the connection to one other process.
type peer struct {
	mesh    *Mesh
	process int
	conn    io.ReadWriteCloser

	mu sync.Mutex // guards writes
}

// pulse is the interval between heartbeats.
const pulse = time.Second

// readBuffer holds the heads of frames; payloads are read past it.
const readBuffer = 64 << 10

// NewMesh returns the mesh of process self; conns are the connections to the other processes, nil for self. The mesh
// owns them and closes them in Close. names are the processes' names in errors.
func NewMesh(self int, conns []io.ReadWriteCloser, names []string) *Mesh {
	m := &Mesh{
		self: self, links: make([]*peer, len(conns)), names: names, run: scope.New(nil), groups: map[string]*members{},
		early: map[string][]*frame{}, lost: map[int]error{}, ended: make(chan struct{}),
	}
	for p, c := range conns {
		if c == nil {
			continue
		}
		l := &peer{mesh: m, process: p, conn: c}
		m.links[p] = l
		m.run.Go("frames of "+names[p], func() error {
			m.gone(p, l.receive())
			return nil
		})
	}
	m.run.Every("pulse", pulse, m.ended, m.pulse)
	return m
}

// pulse sends a heartbeat on every connection on which nothing else is being written.
func (m *Mesh) pulse() {
	for _, l := range m.links {
		if l != nil && l.mu.TryLock() {
			_ = (&frame{kind: alive}).write(l.conn) // receive notices that a process is gone
			l.mu.Unlock()
		}
	}
}

// Close closes all connections; waiting ranks fail.
func (m *Mesh) Close() {
	close(m.ended)
	for _, l := range m.links {
		if l != nil {
			_ = l.conn.Close()
		}
	}
	_ = m.run.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(math.MaxUint64)
}

// Interruptible implements comm.Transport with true: a group that is aborted ends in all processes.
func (m *Mesh) Interruptible() bool { return true }

// Connect implements comm.Transport. All processes of a group must pass the same comm.Group. Tensors of a rank on a GPU
// are copied through host memory while its host waits.
func (m *Mesh) Connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	key := fmt.Sprintf("%d/%s/%d", g.Team, g.Name, g.Ranks[0])
	group := newMembers(m, key, g)
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.Team > m.newest {
		m.forget(g.Team)
	}
	if m.groups[key] != nil {
		return nil, fmt.Errorf("%s: group %s is connected already", g.Name, key)
	}
	m.groups[key] = group
	for _, f := range m.early[key] {
		group.take(f)
	}
	delete(m.early, key)
	for _, p := range group.process {
		if err := m.lost[p]; err != nil {
			group.End(err)
		}
	}
	out := make([]comm.Comm, len(ops))
	for i, o := range ops {
		if o == nil {
			continue
		}
		device, _ := o.(*cuda.Ops) // nil for a rank that works in host memory
		out[i] = &end{Seat: comm.NewSeat(group.Rendezvous, i), group: group, device: device, posts: map[int][]comm.Message{}}
	}
	return out, nil
}

// forget drops the groups of teams older than team. The caller must hold m.mu.
func (m *Mesh) forget(team uint64) {
	m.newest = team
	old := func(key string) bool { return teamOf(key) < team }
	maps.DeleteFunc(m.groups, func(key string, _ *members) bool { return old(key) })
	maps.DeleteFunc(m.early, func(key string, _ []*frame) bool { return old(key) })
}

// teamOf returns the team in a key, 0 if the key is malformed.
func teamOf(key string) (team uint64) {
	_, _ = fmt.Sscanf(key, "%d/", &team)
	return team
}

// receive hands frames to their groups until the connection ends.
func (l *peer) receive() error {
	r := bufio.NewReaderSize(l.conn, readBuffer)
	for {
		f, err := readFrame(r)
		if err != nil {
			return err
		}
		if f.kind != alive {
			l.mesh.deliver(f)
		}
	}
}

// deliver hands a frame to its group, or keeps it for a group that is not connected here yet.
func (m *Mesh) deliver(f *frame) {
	m.mu.Lock()
	group := m.groups[f.group]
	if group == nil && teamOf(f.group) >= m.newest { // the peers are ahead of this process
		m.early[f.group] = append(m.early[f.group], f)
	}
	m.mu.Unlock()
	if group != nil {
		group.take(f)
	}
}

// gone ends all groups with members in a process whose connection has ended.
func (m *Mesh) gone(process int, cause error) {
	if errors.Is(cause, io.EOF) {
		cause = errors.New("its connection has ended")
	}
	err := &comm.Error{Text: m.names[process] + " has gone", Cause: cause}
	m.mu.Lock()
	m.lost[process] = err
	var hit []*members
	for _, g := range m.groups {
		if slices.Contains(g.process, process) {
			hit = append(hit, g)
		}
	}
	m.mu.Unlock()
	for _, g := range hit {
		g.End(err)
	}
}

// send sends a frame to a process. The payload may be reused when it returns.
func (m *Mesh) send(process int, f *frame) error {
	if process == m.self {
		copied := *f
		copied.payload = append([]byte(nil), f.payload...)
		m.deliver(&copied)
		return nil
	}
	l := m.links[process]
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := f.write(l.conn); err != nil {
		return &comm.Error{Text: "send to " + m.names[process], Cause: err}
	}
	return nil
}
