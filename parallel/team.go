package parallel

import (
	"fmt"
	"sync/atomic"
	"time"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/failure"
	"patchbay/parallel/group"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
)

// team is the ranks of one plan, as the leader sees them: it cuts commands for each of them and puts their answers
// together.
type team struct {
	plan  plan.Plan // as asked for
	mesh  plan.Mesh // of lanes: Pipe counts the stops of a micro-step
	links []*rank.Link
	group *group.Group
	watch watchdog
	left  atomic.Bool   // a rank hangs and was left behind
	baton *group.Baton  // nil: everybody runs freely
	ended chan struct{} // closed when all ranks have returned, after close

	interruptible bool // exchanges can be cut short
	kept          bool // a cancelled run has left all ranks in step
}

// rendezvous is how long a band of the VAE waits for another before the request fails and names both.
const rendezvous = 2 * time.Minute

// newTeam starts the ranks of a plan; folded says that micro-steps go down and back up (plan.Cut).
func newTeam(p plan.Plan, folded bool, cfg *Config,
	weights func(rank int) func(string) (dit.Model, bool),
) (*team, error) {
	limit := cfg.Patience
	if limit == 0 {
		limit = patience
	}
	lanes := p
	lanes.Pipe = p.Stops(folded)
	m := plan.Mesh{Plan: lanes, Stages: p.Pipe}
	n := lanes.Ranks()
	t := &team{
		plan: p, mesh: m, group: group.New(nil), watch: watchdog{limit: limit}, ended: make(chan struct{}),
		baton: group.NewBaton(cfg.Order),
	}
	transport := cfg.transport()
	if t.baton != nil {
		t.baton.Stuck = t.deadlock
		transport = comm.Local{Block: func(ready func() bool) { t.baton.Block(false, ready) }}
	}
	t.interruptible = transport.Interruptible()
	ops := make([]engine.Ops, n)
	for r := range ops {
		at, _ := t.device(r) // both lanes of a folded stage work on one device
		var err error
		if ops[r], err = cfg.NewOps(at, p.Ranks()); err != nil {
			rank.CloseOps(ops[:r]...)
			return nil, fmt.Errorf("start rank %d: %w", r, err)
		}
	}
	ends, err := connect(transport, m, ops, 2*limit)
	if err != nil {
		rank.CloseOps(ops...)
		return nil, err
	}
	stores := make([]*rank.SkipStore, n)
	for r := range n {
		if c := m.At(r); c.Pipe >= p.Pipe { // an up lane shares the store of its down lane
			c.Pipe = lanes.Pipe - 1 - c.Pipe
			stores[r] = stores[m.Rank(c)]
		} else {
			stores[r] = rank.NewSkipStore()
		}
		at, _ := t.device(r)
		l := rank.NewLink(rank.New(r, ops[r], ends[r], stores[r], weights(at), t.baton), cfg.Recode)
		t.links = append(t.links, l)
		name := fmt.Sprintf("rank %d", r)
		seat := t.baton.Join(name)
		t.group.Go(name, func() error {
			t.baton.Start(seat)
			defer t.baton.Leave(seat)
			l.Serve()
			return nil
		})
	}
	return t, nil
}

// connect makes the ends of every rank on every axis.
func connect(transport comm.Transport, m plan.Mesh, ops []engine.Ops,
	deadline time.Duration,
) ([][plan.AxisCount]comm.Comm, error) {
	ends := make([][plan.AxisCount]comm.Comm, len(ops))
	for a := range plan.AxisCount {
		for r := range ops {
			ranks, at := m.Along(a, m.At(r))
			if at != 0 {
				continue
			}
			members := make([]engine.Ops, len(ranks))
			for i, other := range ranks {
				members[i] = ops[other]
			}
			group, err := transport.Connect(comm.Group{Name: a.String(), Ranks: ranks, Deadline: deadline}, members)
			if err != nil {
				return nil, fmt.Errorf("connect ranks %v for %s: %w", ranks, a, err)
			}
			for i, c := range group {
				ends[ranks[i]][a] = c
			}
		}
	}
	return ends, nil
}

// close ends the ranks after the work in hand. It does not wait for a rank that hangs: ended tells when that one has
// returned after all.
func (t *team) close() {
	for _, l := range t.links {
		l.Close()
	}
	t.baton.Kick()
	wait := func() error {
		_ = t.group.Wait() // serve has no error of its own
		close(t.ended)
		return nil
	}
	if t.left.Load() {
		group.New(nil).Go("end of a rank that hangs", wait)
		return
	}
	_ = wait()
}

// all queues cut(rank) on every rank for which it is not nil and returns a function that waits for the replies, by
// rank. The first error that is not the echo of another rank's failure wins.
func (t *team) all(cut func(rank int) *rank.Command) func() ([]rank.Reply, error) {
	waits := make([]func() (rank.Reply, error), len(t.links))
	errs := make([]error, len(t.links))
	for r, l := range t.links {
		if c := cut(r); c != nil {
			waits[r], errs[r] = l.Send(*c, t.await)
		}
	}
	return func() ([]rank.Reply, error) {
		replies := make([]rank.Reply, len(t.links))
		var first error
		for r, wait := range waits {
			if wait != nil {
				replies[r], errs[r] = wait()
			}
			if errs[r] == nil {
				continue
			}
			if e := group.AsError(errs[r]); first == nil ||
				group.AsError(first).Code == failure.PeerLost && e.Code != failure.PeerLost {
				first = e
			}
		}
		return replies, first
	}
}

// device returns the rank of the plan that a member of the team belongs to, and whether it is the lane on which
// micro-steps come to that rank first: folded stages have two members, one for the way down and one for the way up.
func (t *team) device(member int) (rank int, down bool) {
	c := t.mesh.At(member)
	down = c.Pipe < t.plan.Pipe
	if !down {
		c.Pipe = t.mesh.Plan.Pipe - 1 - c.Pipe
	}
	return plan.Mesh{Plan: t.plan}.Rank(c), down
}
