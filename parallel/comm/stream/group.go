package stream

import (
	"fmt"
	"sync"

	"patchbay/engine"
	"patchbay/parallel/comm"
)

// members is what this process knows of a group.
type members struct {
	*comm.Rendezvous
	mesh    *Mesh
	key     string
	name    string
	process []int             // of each member
	arrived map[way][]*frame  // not taken yet, oldest first
	posts   map[way][]message // posted memory that was not awaited yet, oldest first
	over    bool              // nobody takes anything any more
}

// way is the frames from one rank to another: of collectives, or messages.
type way struct {
	from, to   int
	collective bool
}

// message is a tensor of a call with the place of the call.
type message struct {
	engine.Tensor
	at string
}

func newMembers(m *Mesh, key string, g comm.Group) *members {
	own := &members{
		mesh: m, key: key, name: g.Name, process: g.Processes, arrived: map[way][]*frame{}, posts: map[way][]message{},
	}
	if own.process == nil {
		own.process = make([]int, len(g.Ranks))
		for i := range own.process {
			own.process[i] = m.self
		}
	}
	own.Rendezvous = comm.NewRendezvous(g, len(g.Ranks), own.standing)
	own.OnWake(own.wake)
	return own
}

// take keeps a frame for the rank that it is for.
func (g *members) take(f *frame) {
	if f.kind == abort {
		g.Rendezvous.Abort(&comm.Error{Text: fmt.Sprintf("%s: rank %d: %s", g.name, f.from, f.payload)})
		f.done()
		return
	}
	g.Locked(func() error {
		if g.over {
			f.done()
			return nil
		}
		w := way{int(f.from), int(f.to), f.kind == collective}
		g.arrived[w] = append(g.arrived[w], f)
		g.Moved()
		return nil
	})
}

// wake wakes who sleeps on the rings of the group's processes.
func (g *members) wake() {
	for _, p := range g.process {
		if l := g.mesh.links[p]; l != nil && l.in != nil && l.in.hold() {
			l.in.wake()
			l.in.drop()
		}
	}
}

// forget gives back what nobody has taken.
func (g *members) forget() {
	g.Locked(func() error {
		g.over = true
		for _, list := range g.arrived {
			for _, f := range list {
				f.done()
			}
		}
		clear(g.arrived)
		return nil
	})
}

// await waits for the oldest frame of a way and returns it; rank is who waits, what is its call. The caller is
// done with it in the end.
func (g *members) await(w way, rank int, what string) (f *frame, err error) {
	var sleep func(sync.Locker) bool
	if l := g.mesh.links[g.process[w.from]]; l != nil && l.in != nil {
		l.look()
		sleep = l.sleep
	}
	g.Locked(func() error {
		if err = g.WaitBy(sleep, rank, what, func() bool { return len(g.arrived[w]) > 0 }); err == nil {
			f, g.arrived[w] = g.arrived[w][0], g.arrived[w][1:]
		}
		return nil
	})
	return f, err
}

// broken aborts the group, here and elsewhere by the error that its rank ends with.
func (g *members) broken(format string, args ...any) *comm.Error {
	err := &comm.Error{Text: g.name + ": " + fmt.Sprintf(format, args...)}
	g.Rendezvous.Abort(err)
	return err
}

// standing lists frames that nobody has taken.
func (g *members) standing() string {
	s := ""
	for w, list := range g.arrived {
		for _, f := range list {
			s += fmt.Sprintf("[rank %d sends to %d: %s]", w.from, w.to, f)
		}
	}
	return s
}

// elements are n of a contiguous tensor from off, as a vector.
func elements(t engine.Tensor, off, n int) engine.Tensor {
	v := engine.NewTensor(t.Buf, t.DType, n)
	v.Off = t.Off + off
	return v
}

// bytes are the memory of n elements of a contiguous host tensor from off.
func bytes(t engine.Tensor, off, n int) []byte {
	if n == 0 {
		return nil
	}
	s := t.DType.Size()
	return t.Buf.Host[(t.Off+off)*s : (t.Off+off+n)*s]
}
