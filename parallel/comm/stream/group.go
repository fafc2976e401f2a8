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
	return group
}

// take keeps a frame for the rank that it is addressed to.
func (g *members) take(f *frame) {
	if f.kind == abort {
		g.End(g.Errorf("rank %d: %s", f.from, f.payload))
		return
	}
	g.Locked(func() {
		w := way{int(f.from), int(f.to), f.kind == collective}
		g.arrived[w] = append(g.arrived[w], f)
		g.WakeAll()
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
