package stream_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/commtest"
	"patchbay/parallel/comm/stream"
)

// several is the transport of ranks in several processes, here all in one, each with a mesh of its own: rank r lives
// in process r modulo their number.
type several struct {
	processes int
	meshes    []*stream.Mesh
	team      uint64
}

// meshes connects that many processes with each other, near ones by unix sockets, which keep what is sent, others by
// pipes, which keep nothing.
func meshes(t *testing.T, processes int, near bool) []*stream.Mesh {
	t.Helper()
	conns := make([][]io.ReadWriteCloser, processes)
	for p := range conns {
		conns[p] = make([]io.ReadWriteCloser, processes)
	}
	for p := range conns {
		for q := range p {
			if conns[p][q], conns[q][p] = net.Pipe(); near {
				ends := stream.Pair(t)
				conns[p][q], conns[q][p] = ends[0], ends[1]
			}
		}
	}
	out, names := make([]*stream.Mesh, processes), make([]string, processes)
	for p := range names {
		names[p] = fmt.Sprintf("process %d", p)
	}
	for p := range out {
		out[p] = stream.NewMesh(p, conns[p], names)
	}
	return out
}

func (s *several) Interruptible() bool { return true }

func (s *several) Connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	s.team++
	g.Team, g.Processes = s.team, make([]int, len(ops))
	for r := range ops {
		g.Processes[r] = r % s.processes
	}
	out := make([]comm.Comm, len(ops))
	for p, m := range s.meshes {
		local := make([]engine.Ops, len(ops))
		for r := range ops {
			if g.Processes[r] == p {
				local[r] = ops[r]
			}
		}
		ends, err := m.Connect(g, local)
		if err != nil {
			return nil, err
		}
		for r, e := range ends {
			if e != nil {
				out[r] = e
			}
		}
	}
	return out, nil
}

// TestStream runs the transport suite with one rank in each process and with several, on one machine and on several.
func TestStream(t *testing.T) {
	for name, c := range map[string]struct {
		processes int
		near      bool
	}{
		"a process a rank": {6, false}, "two processes": {2, false},
		"a process a rank, near": {6, true}, "two processes, near": {2, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &several{processes: c.processes, meshes: meshes(t, c.processes, c.near)}
			defer func() {
				for _, m := range s.meshes {
					m.Close()
				}
			}()
			commtest.Run(t, commtest.Rig{Transport: s, Texts: true, Ops: func(n int) ([]engine.Ops, func() error, error) {
				out := make([]engine.Ops, n)
				for r := range out {
					out[r] = ref.New()
				}
				return out, func() error { return nil }, nil
			}})
		})
	}
}

// TestAProcessThatGoesEndsItsGroups checks that ranks that wait for a dead process, or for another one, and groups
// connected later get an error that names it, before the deadline.
func TestAProcessThatGoesEndsItsGroups(t *testing.T) {
	for name, near := range map[string]bool{"near": true, "far": false} {
		t.Run(name, func(t *testing.T) {
			all := meshes(t, 3, near)
			defer all[0].Close()
			defer all[2].Close()
			g := comm.Group{
				Team: 1, Name: "ring", Ranks: []int{0, 1, 2}, Processes: []int{0, 1, 2}, Deadline: time.Minute,
			}
			receive := func(g comm.Group, from int) (err error) {
				ends, err := all[0].Connect(g, []engine.Ops{ref.New(), nil, nil})
				if err != nil {
					return err
				}
				if ends[1] != nil {
					t.Error("there is an end of a rank in another process")
				}
				defer func() { err, _ = recover().(error) }()
				ends[0].SendRecv(engine.FromF32([]float32{0}, 1), from, engine.Tensor{}, -1)
				return nil
			}
			other, later := g, g
			other.Name, later.Team = "pipe", 2
			done := [2]chan error{make(chan error, 1), make(chan error, 1)}
			go func() { done[0] <- receive(g, 1) }()
			go func() { done[1] <- receive(other, 2) }()
			time.Sleep(10 * time.Millisecond)
			all[1].Close()
			for what, err := range map[string]error{
				"waiting": <-done[0], "waiting for another": <-done[1], "later": receive(later, 1),
			} {
				var ce *comm.Error
				if !errors.As(err, &ce) || !strings.Contains(err.Error(), "process 1 has gone") {
					t.Errorf("%s: got %v, want an error that names process 1", what, err)
				}
			}
		})
	}
}
