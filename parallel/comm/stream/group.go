package stream

import (
	"fmt"
	"slices"

	"patchbay/parallel/comm"
)

// members is the state of a group in this process.
type members struct {
	*comm.Rendezvous
	mesh    *Mesh
	key     string
	process []int            // process of each member
	arrived map[way][]*frame // frames not taken yet, oldest first
	over    bool             // after forget: frames are released as they arrive
}

// way identifies the frames from one rank to another, separately for collectives and messages.
type way struct {
	from, to   int
	collective bool
}

func newMembers(m *Mesh, key string, g comm.Group) *members {
	group := &members{mesh: m, key: key, process: g.Processes, arrived: map[way][]*frame{}}
	if group.process == nil {
		group.process = slices.Repeat([]int{m.self}, len(g.Ranks))
	}
	group.Rendezvous = comm.NewRendezvous(g, len(g.Ranks), group.standing)
	group.OnWake(group.wake)
	return group
}

// take keeps a frame for the rank that it is addressed to.
func (g *members) take(f *frame) {
	if f.kind == abort {
		g.End(g.Errorf("rank %d: %s", f.from, f.payload))
		f.done()
		return
	}
	g.Locked(func() {
		if g.over {
			f.done()
			return
		}
		w := way{int(f.from), int(f.to), f.kind == collective}
		g.arrived[w] = append(g.arrived[w], f)
		g.WakeAll()
	})
}

// wake wakes the ranks that sleep on the rings of the group's processes.
func (g *members) wake() {
	for _, p := range g.process {
		if l := g.mesh.links[p]; l != nil && l.in != nil && l.in.hold() {
			l.in.wake()
			l.in.drop()
		}
	}
}

// forget releases the frames that nobody has taken.
func (g *members) forget() {
	g.Locked(func() {
		g.over = true
		for _, list := range g.arrived {
			for _, f := range list {
				f.done()
			}
		}
		clear(g.arrived)
	})
}

// standing lists the frames that nobody has taken.
func (g *members) standing() string {
	s := ""
	for w, list := range g.arrived {
		for _, f := range list {
			s += fmt.Sprintf("[rank %d sends to %d: %s]", w.from, w.to, f)
		}
	}
	return s
}
