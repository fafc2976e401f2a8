//go:build cgo && fakegpu

package nccl

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/commtest"
	"patchbay/parallel/comm/stream"
)

// apart holds the transports of ranks in several processes, here all in one: rank r lives in process r modulo their
// number, connected only by a mesh and by the fake library's board of files.
type apart struct {
	*rig
	meshes     []*stream.Mesh
	transports []*Transport
}

func newApart(t *testing.T, processes, devices int) *apart {
	t.Helper()
	t.Setenv("FAKEGPU_BOARD", t.TempDir())
	a := &apart{rig: newRig(t, devices)}
	conns, names := make([][]io.ReadWriteCloser, processes), make([]string, processes)
	for p := range conns {
		conns[p], names[p] = make([]io.ReadWriteCloser, processes), fmt.Sprintf("process %d", p)
		for q := range p {
			conns[p][q], conns[q][p] = net.Pipe()
		}
	}
	for p := range conns {
		m := stream.NewMesh(p, conns[p], names)
		a.meshes = append(a.meshes, m)
		a.transports = append(a.transports, NewBetween(a.lib, m))
	}
	t.Cleanup(func() {
		for p, m := range a.meshes {
			m.Close()
			if err := a.transports[p].Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return a
}

// connect connects a group from all its processes at the same time.
func (a *apart) connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	g.Processes = make([]int, len(ops))
	for r := range ops {
		g.Processes[r] = r % len(a.meshes)
	}
	out, errs := make([]comm.Comm, len(ops)), make([]error, len(a.meshes))
	var all sync.WaitGroup
	for p, t := range a.transports {
		if p >= len(ops) {
			break // it has no rank in the group
		}
		local := make([]engine.Ops, len(ops))
		for r := range ops {
			if g.Processes[r] == p {
				local[r] = ops[r]
			}
		}
		all.Go(func() {
			var ends []comm.Comm
			ends, errs[p] = t.Connect(g, local)
			for r, e := range ends {
				if local[r] != nil {
					out[r] = e
				}
			}
		})
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// Connect gives every group a team of its own.
func (a *apart) Connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	a.teams++
	g.Team = a.teams
	return a.connect(g, ops)
}

func (a *apart) Interruptible() bool { return a.transports[0].Interruptible() }

// TestBetween runs the transport suite with one rank in each process and with several, except that calls are not
// compared.
func TestBetween(t *testing.T) {
	for name, processes := range map[string]int{"a process a rank": 6, "two processes": 2} {
		t.Run(name, func(t *testing.T) {
			a := newApart(t, processes, 6)
			commtest.Run(t, commtest.Rig{Transport: a, Ops: a.ops, Late: true, Texts: true, Trusting: true, Draws: 4})
		})
	}
}

// TestEndsBetween checks that a rank whose device waits for one in another process is woken with the cause when that
// one aborts, or when the two disagree and NCCL notices, and that the processes can connect again afterwards.
func TestEndsBetween(t *testing.T) {
	a := newApart(t, 2, 2)
	for _, tr := range a.transports {
		tr.period = 20 * time.Millisecond
	}
	for _, c := range []struct {
		name, want string
		other      func(c comm.Comm, dst, src engine.Tensor)
	}{
		{"abort", "it was told to", func(c comm.Comm, _, _ engine.Tensor) { c.Abort(errors.New("it was told to")) }},
		{"counts", "NCCL lost a rank", func(c comm.Comm, dst, src engine.Tensor) {
			c.SendRecv(comm.Piece(dst, 0, 3), 0, comm.Piece(src, 0, 3), 0)
		}},
		{"nothing", "", func(c comm.Comm, dst, src engine.Tensor) { c.SendRecv(dst, 0, src, 0) }},
	} {
		ops, end, err := a.ops(2)
		if err != nil {
			t.Fatal(err)
		}
		ends, err := a.Connect(comm.Group{Name: "test", Ranks: []int{0, 1}}, ops)
		if err != nil {
			t.Fatal(err)
		}
		var memory [4]engine.Tensor
		for i := range memory {
			buf, err := ops[i/2].Alloc(16)
			if err != nil {
				t.Fatal(err)
			}
			memory[i] = engine.NewTensor(buf, engine.F32, 4)
			ops[i/2].Fill(memory[i], float32(i))
		}
		ends[0].SendRecv(memory[0], 1, memory[1], 1)
		c.other(ends[1], memory[2], memory[3])
		got := make([]float32, 4)
		err = ops[0].Download(got, memory[0]).Wait()
		fine := err == nil && got[3] == 3
		if c.want != "" {
			fine = err != nil && strings.Contains(err.Error(), c.want)
		}
		if !fine {
			t.Errorf("%s: %v (%v), want %q", c.name, err, got, c.want)
		}
		_ = ops[1].Sync()
		for i, m := range memory {
			ops[i/2].Free(m.Buf)
		}
		if err := end(); err != nil && c.want == "" {
			t.Error(err)
		}
	}
}
