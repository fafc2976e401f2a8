package remote

import (
	"errors"
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/trial"
	"patchbay/parallel/rank"
)

// clock makes members of a group run an exchange and time it.
type clock struct {
	Trial            trial.Trial
	Team             uint64
	Ranks, Processes []int // by member, as in comm.Group
	Here, Places     []int // members that run in the receiving process, and their places there
}

// clock handles the call.
func (s *server) clock(q *clock, a *answer) (err error) {
	if len(q.Processes) != len(q.Ranks) || len(q.Places) != len(q.Here) {
		return fmt.Errorf("exchanges of %d ranks in %d processes, %d of them at %d places here", len(q.Ranks),
			len(q.Processes), len(q.Here), len(q.Places))
	}
	ops := make([]engine.Ops, len(q.Ranks))
	defer func() { rank.CloseOps(ops...) }()
	for i, m := range q.Here {
		if m < 0 || m >= len(ops) || ops[m] != nil || q.Places[i] < 0 || q.Places[i] >= s.Host.Places() {
			return fmt.Errorf("member %d at place %d, which is not here", m, q.Places[i])
		}
		if ops[m], err = s.Host.NewOps(q.Places[i], len(q.Ranks)); err != nil {
			return fmt.Errorf("start rank %d: %w", q.Ranks[m], err)
		}
		device := ""
		if o, ok := ops[m].(engine.Located); ok {
			device = o.Location()
		}
		a.Devices = append(a.Devices, device)
	}
	a.Seconds, err = q.Trial.Run(s.led, s.over, comm.Group{Team: q.Team, Ranks: q.Ranks, Processes: q.Processes}, ops)
	return err
}

// Bench times exchanges between hosts. Every place of each host has a rank, in the order of the hosts.
type Bench struct {
	clients []*Process
	nccl    bool
	team    uint64
	homes   []home // by rank
}

// home is where a rank runs.
type home struct {
	process, place int
	device         string // "" until it has exchanged, and on CPUs
}

// NewBench connects hosts with each other. All must be there: the error names every one that is not, and why.
func NewBench(n Network, addresses []string, by Exchange) (*Bench, error) {
	b := &Bench{}
	var missing []error
	for _, address := range addresses {
		c, err := n.lead(address)
		if err != nil {
			missing = append(missing, fmt.Errorf("host %s: %w", address, err))
			continue
		}
		for place := range c.places {
			b.homes = append(b.homes, home{process: len(b.clients), place: place})
		}
		b.clients = append(b.clients, c)
	}
	err := errors.Join(missing...)
	if err == nil {
		b.nccl, err = by.nccl(b.clients)
	}
	if err == nil {
		_, err = Meet(b.clients, by, false)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close releases the hosts.
func (b *Bench) Close() {
	for _, c := range b.clients {
		c.Close()
	}
}

// Ranks returns how many places the hosts have together.
func (b *Bench) Ranks() int { return len(b.homes) }

// NCCL reports whether GPUs of several hosts exchange by NCCL rather than through host memory.
func (b *Bench) NCCL() bool { return b.nccl }

// Name returns the name of a rank: its host, and its device once it has exchanged.
func (b *Bench) Name(r int) string {
	at := b.homes[r]
	device := at.device
	if device == "" {
		device = fmt.Sprintf("rank %d", at.place)
	}
	return b.clients[at.process].host() + " " + device
}

// Time runs an exchange between some ranks and returns, by run, the seconds of the rank that took longest.
func (b *Bench) Time(who []int, t trial.Trial) ([]float64, error) {
	b.team++
	q := clock{Trial: t, Team: b.team, Ranks: who}
	for _, r := range who {
		q.Processes = append(q.Processes, b.homes[r].process)
	}
	type reply struct {
		process int
		answer
		err error
	}
	asked, answers := 0, make(chan reply, len(b.clients))
	for p, c := range b.clients {
		part := q
		for i, r := range who {
			if b.homes[r].process == p {
				part.Here, part.Places = append(part.Here, i), append(part.Places, b.homes[r].place)
			}
		}
		if part.Here == nil {
			continue
		}
		asked++
		c.run.Go("exchange", func() error {
			a, err := c.ask(&call{Clock: &part})
			if err != nil {
				err = fmt.Errorf("%s: %w", c.name, err)
			}
			answers <- reply{p, a, err}
			return nil
		})
	}
	var took [][]float64
	for range asked {
		a := <-answers
		if a.err != nil {
			return nil, a.err
		}
		took = append(took, a.Seconds)
		ranks := slices.DeleteFunc(slices.Clone(who), func(r int) bool { return b.homes[r].process != a.process })
		for i, device := range a.Devices[:min(len(ranks), len(a.Devices))] {
			b.homes[ranks[i]].device = device
		}
	}
	return trial.Slowest(took), nil
}
