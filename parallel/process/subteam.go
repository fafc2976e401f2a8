package process

import (
	"cmp"
	"fmt"

	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
	"patchbay/parallel/scope"
)

// subteam is the members of a team that run in this process.
type subteam struct {
	members   []Member // in the order of Team.Local
	ports     []*rank.Port
	scope     *scope.Scope
	scheduler *scope.Scheduler
}

func (h *Local) Join(t TeamSpec) (Subteam, error) { return h.JoinOver(h.cfg.Transport, t) }

// JoinOver is Join with another transport than that of the Config.
func (h *Local) JoinOver(transport comm.Transport, t TeamSpec) (Subteam, error) {
	c := &subteam{scope: scope.New(nil), scheduler: h.cfg.Order}
	switch {
	case c.scheduler != nil:
		transport = comm.Local{Block: func(ready func() bool) { c.scheduler.Block(false, ready) }}
	case transport == nil:
		transport = comm.Local{}
	}
	m := t.Mesh()
	ops := make([]engine.Ops, m.Plan.Ranks()) // nil: in another process
	weights := make([]*placements, len(ops))
	for _, member := range t.Local { // all that may fail comes before the first rank starts
		at, _ := t.Device(member) // both lanes of a folded stage work on one device
		on, err := h.placesOf(at - t.First)
		var o engine.Ops
		if err == nil {
			o, err = h.cfg.NewOps(at-t.First, cmp.Or(t.Concurrent, t.Plan.Ranks()))
		}
		if err != nil {
			rank.CloseOps(ops...)
			return nil, fmt.Errorf("start rank %d: %w", member, err)
		}
		ops[member], weights[member] = o, on
	}
	ends, err := connect(transport, m, ops, &t)
	if err != nil {
		rank.CloseOps(ops...)
		return nil, err
	}
	stores := make([]*rank.LaneStore, len(ops))
	for _, member := range t.Local {
		_, down := t.Device(member)
		if c := m.At(member); !down { // the up lane shares the store of the down lane
			c.Pipe = m.Plan.Pipe - 1 - c.Pipe
			stores[member] = stores[m.Rank(c)]
		} else {
			stores[member] = rank.NewLaneStore()
		}
		at, _ := t.Device(member)
		more := func() (engine.Ops, error) {
			return h.cfg.NewOps(at-t.First, cmp.Or(t.Concurrent, t.Plan.Ranks()))
		}
		r := rank.New(member, ops[member], ends[member], stores[member], weights[member].resident, more, c.scheduler)
		c.start(rank.NewPort(r, h.cfg.Recode), fmt.Sprintf("rank %d", member))
	}
	return c, nil
}

// start runs a member until it is closed.
func (c *subteam) start(l *rank.Port, name string) {
	c.ports, c.members = append(c.ports, l), append(c.members, l)
	task := c.scheduler.Join(name)
	c.scope.Go(name, func() error {
		c.scheduler.Start(task)
		defer c.scheduler.Leave(task)
		l.Serve()
		return nil
	})
}

func (c *subteam) Members() []Member { return c.members }

// Silent implements Subteam: positions of members of this process are never outdated.
func (c *subteam) Silent() bool { return false }

func (c *subteam) Close() <-chan struct{} {
	for _, l := range c.ports {
		l.Close()
	}
	c.scheduler.Wake()
	ended := make(chan struct{})
	scope.New(nil).Go("end of ranks", func() error {
		defer close(ended)
		_ = c.scope.Wait() // Serve has no error of its own
		return nil
	})
	return ended
}

// connect makes the ends on all axes of every member that has Ops.
func connect(
	transport comm.Transport, m plan.Mesh, ops []engine.Ops, t *TeamSpec,
) ([][plan.AxisCount]comm.Comm, error) {
	ends := make([][plan.AxisCount]comm.Comm, len(ops))
	for a := range plan.AxisCount {
		for r := range ops {
			ranks, at := m.Along(a, m.At(r))
			if at != 0 {
				continue
			}
			members, anyLocal := make([]engine.Ops, len(ranks)), false
			for i, other := range ranks {
				members[i] = ops[other]
				anyLocal = anyLocal || ops[other] != nil
			}
			if !anyLocal {
				continue
			}
			g := comm.Group{Team: t.ID, Name: a.String(), Ranks: ranks, Deadline: t.Deadline, Pipe: a == plan.AxisPipe}
			if t.Processes != nil {
				for _, other := range ranks {
					g.Processes = append(g.Processes, t.Processes[other])
				}
			}
			list, err := transport.Connect(g, members)
			if err != nil {
				return nil, fmt.Errorf("connect ranks %v for %s: %w", ranks, a, err)
			}
			for i, c := range list {
				ends[ranks[i]][a] = c
			}
		}
	}
	return ends, nil
}
