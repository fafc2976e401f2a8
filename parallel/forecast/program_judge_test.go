package forecast

import (
	"fmt"

	"patchbay/parallel/plan"
)

// program states the order of a schedule as a network, the same as in evaluator and team (package parallel)
// and session (package rank). A sampler waits for its turn, gives its patch to the first lane and passes the turn on.
// Every lane runs micro-steps in order: it receives the rows of all entries, computes, and sends them. The last lane
// returns its result to the sampler, which computes the next input of that patch. In a synchronous evaluation the last
// sampler runs the whole image for all and passes the turn on afterwards; if such evaluations are spread, it sends a
// command to every down lane and collects their results.
type program struct {
	timing
	net             network
	link            [][]int // by group and lane: channel to the next lane
	turn            []int   // channel from sampler m to the next one
	done            []int   // channel from the last sampler to sampler m
	command         [][]int // by group and sampler: channel to the first lane
	result          [][]int // by group and sampler: channel from the last lane
	order, part     [][]int // by group and lane: channels from and to the last sampler, for spread evaluations
	lanes, samplers int     // lanes of one group; lanes of all groups, which come before the samplers
}

// newProgram lays out actors, channels and actions.
func newProgram(t timing) *program {
	p := &program{timing: t, lanes: len(t.stage)}
	p.samplers = t.groups * p.lanes
	for g := range t.groups {
		for k, s := range t.stage {
			p.net.actors = append(p.net.actors, actor{name: p.laneName(g, k), device: 1 + g*p.lanes + s})
		}
	}
	for m := range t.shares {
		p.net.actors = append(p.net.actors, actor{name: fmt.Sprintf("sampler %d", m)})
	}
	for g := range t.groups {
		var link []int
		for k := range p.lanes - 1 {
			link = append(link, p.channel(g*p.lanes+k, g*p.lanes+k+1, p.ahead*p.entries(g)))
		}
		p.link = append(p.link, link)
	}
	p.connect()
	for g := range t.groups {
		for k := range p.lanes {
			p.lane(g, k)
		}
	}
	for m := range t.shares {
		p.sampler(m)
	}
	return p
}

func (p *program) laneName(g, k int) string {
	name := fmt.Sprintf("stage %d", p.stage[k])
	if k > 0 && p.stage[k] <= p.stage[k-1] {
		name += " (back)"
	}
	if p.groups > 1 {
		name = fmt.Sprintf("group %d %s", g, name)
	}
	return name
}

func (p *program) channel(from, to, slots int) int {
	p.net.channels = append(p.net.channels, channel{from, to, slots})
	return len(p.net.channels) - 1
}

// connect creates the channels of the samplers.
func (p *program) connect() {
	first, last := p.samplers, p.shares-1
	for m := range p.shares {
		p.turn = append(p.turn, p.channel(first+m, first+(m+1)%p.shares, unbounded))
		p.done = append(p.done, p.channel(first+last, first+m, unbounded))
	}
	for g := range p.groups {
		var command, result, order, part []int
		lane := g * p.lanes
		for m := range p.shares {
			command = append(command, p.channel(first+m, lane, unbounded))
			result = append(result, p.channel(lane+p.lanes-1, first+m, unbounded))
		}
		for k := range p.downLanes() {
			order = append(order, p.channel(first+last, lane+k, unbounded))
			part = append(part, p.channel(lane+k, first+last, unbounded))
		}
		p.order, p.part = append(p.order, order), append(p.part, part)
		p.command, p.result = append(p.command, command), append(p.result, result)
	}
}

// downLanes returns how many lanes a micro-step passes through on its way down, one per stage: those that compute in
// spread evaluations.
func (p *program) downLanes() int {
	most := 0
	for _, s := range p.stage {
		most = max(most, s+1)
	}
	return most
}

// lane adds the actions of lane k of group g.
func (p *program) lane(g, k int) {
	a := &p.net.actors[g*p.lanes+k]
	a.actions = make([]action, 0, len(p.micros)*(2+2*p.entries(g)))
	for _, m := range p.micros {
		p.micro(g, k, m, a.do)
	}
}

// micro calls do for the actions of lane k of group g in one micro-step.
func (p *program) micro(g, k int, m plan.Micro, do func(SpanKind, int, float64, plan.Micro)) {
	if m.Whole && p.spread {
		if k >= p.downLanes() {
			return
		}
		do(Receiving, p.order[g][k], 0, m)
		do(Working, 0, p.work(g, k, m), m)
		do(Sending, p.part[g][k], 0, m)
		return
	}
	owner, entries := m.Patch, p.entries(g)
	if m.Whole {
		owner = p.shares - 1
	}
	if k == 0 {
		do(Receiving, p.command[g][owner], 0, m)
	} else {
		for range entries {
			do(Receiving, p.link[g][k-1], 0, m)
		}
	}
	do(Working, 0, p.work(g, k, m), m)
	if k == p.lanes-1 {
		do(Sending, p.result[g][owner], 0, m)
		return
	}
	for range entries {
		do(Sending, p.link[g][k], p.transfer(g, k, m), m)
	}
}

// sampler adds the actions of the sampler of patch i.
func (p *program) sampler(i int) {
	do, last := p.net.actors[p.samplers+i].do, i == p.shares-1
	each := func(kind SpanKind, all, one [][]int, m plan.Micro) {
		for g := range p.groups {
			if m.Whole && p.spread {
				for _, c := range all[g] {
					do(kind, c, 0, m)
				}
				continue
			}
			do(kind, one[g][i], 0, m)
		}
	}
	ends := p.micros[len(p.micros)-1].Evaluation // the last evaluation
	for _, m := range p.micros {
		if !m.Whole && m.Patch != i {
			continue
		}
		if i > 0 || m.Evaluation > 0 {
			do(Receiving, p.turn[(i+p.shares-1)%p.shares], 0, m)
		}
		pass := func() {
			if !last || m.Evaluation < ends {
				do(Sending, p.turn[i], 0, m)
			}
		}
		switch {
		case m.Whole && last:
			each(Sending, p.order, p.command, m)
			each(Receiving, p.part, p.result, m)
			for other := range p.shares - 1 {
				do(Sending, p.done[other], 0, m)
			}
			pass()
		case m.Whole:
			pass()
			do(Receiving, p.done[i], 0, m)
		default:
			each(Sending, p.order, p.command, m)
			pass()
			each(Receiving, p.part, p.result, m)
		}
		do(Working, 0, p.handover, m)
	}
}
