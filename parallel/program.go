package parallel

import "fmt"

// timing is what a program needs to know of a workload: how many actors there are and how long their actions take.
type timing struct {
	groups  int   // pipelines that run side by side: data parts times cfg groups
	stage   []int // of each lane
	entries func(group int) int
	shares  int // patches, each with a sampler of its own
	micros  []Micro
	// seconds of a lane's work in a micro-step, of one entry's rows to the next lane, and of the sampler between two evaluations of a patch.
	work, transfer func(group, lane int, m Micro) float64
	handover       float64
	slots          int  // of a link, in micro-steps; 0: rendezvous
	spread         bool // synchronous evaluations run on all lanes at once
}

// program is the order of everything that ranks and samplers do, the same that evaluator, team and rankSession keep: a sampler waits for its turn,
// gives its patch to the first lane and passes the turn on; every lane takes micro-steps in order, receives the rows of all entries, computes, and
// sends them; the last lane's result goes to the sampler, which makes the next input of that patch. In a synchronous evaluation the last sampler
// runs the whole picture for all and passes the turn on afterwards; if such evaluations are spread, it gives every lane its command and takes every
// lane's result.
type program struct {
	timing
	net             network
	turn            []int   // channel from sampler m to the next one
	done            []int   // channel from the last sampler to sampler m
	command         [][]int // by group and sampler: channel to the first lane
	result          [][]int // by group and sampler: channel from the last lane
	link            [][]int // by group and lane: channel to the next lane
	order, part     [][]int // by group and lane: channels from and to the last sampler, of spread evaluations
	lanes, samplers int
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

func (p *program) channel(from, to, slots int, what string) int {
	p.net.channels = append(p.net.channels, channel{from: from, to: to, slots: slots, what: what})
	return len(p.net.channels) - 1
}

func (p *program) connect() {
	last := p.shares - 1
	for m := range p.shares {
		p.turn = append(p.turn, p.channel(p.samplers+m, p.samplers+(m+1)%p.shares, unbounded, "the turn"))
		p.done = append(p.done, p.channel(p.samplers+last, p.samplers+m, unbounded, "the synchronous result"))
	}
	for g := range p.groups {
		var command, result, link []int
		first := g * p.lanes
		for m := range p.shares {
			command = append(command, p.channel(p.samplers+m, first, unbounded, "a command"))
			result = append(result, p.channel(first+p.lanes-1, p.samplers+m, unbounded, "a result"))
		}
		for k := range p.lanes - 1 {
			slots := p.slots * p.entries(g)
			link = append(link, p.channel(first+k, first+k+1, slots, "rows"))
		}
		var order, part []int
		for k := range p.lanes {
			order = append(order, p.channel(p.samplers+last, first+k, unbounded, "a command"))
			part = append(part, p.channel(first+k, p.samplers+last, unbounded, "a part of the result"))
		}
		p.order, p.part = append(p.order, order), append(p.part, part)
		p.command, p.result, p.link = append(p.command, command), append(p.result, result), append(p.link, link)
	}
}

// lane is what lane k of group g does.
func (p *program) lane(g, k int) {
	a := &p.net.actors[g*p.lanes+k]
	do := func(kind SpanKind, channel int, seconds float64, m Micro) {
		a.actions = append(a.actions, action{kind, channel, seconds, m})
	}
	entries := p.entries(g)
	for _, m := range p.micros {
		if m.Whole && p.spread {
			do(Receiving, p.order[g][k], 0, m)
			do(Working, 0, p.work(g, k, m), m)
			do(Sending, p.part[g][k], 0, m)
			continue
		}
		owner := m.Patch
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
			continue
		}
		for range entries {
			do(Sending, p.link[g][k], p.transfer(g, k, m), m)
		}
	}
}

// sampler is what the sampler of patch i does.
func (p *program) sampler(i int) {
	a := &p.net.actors[p.samplers+i]
	do := func(kind SpanKind, channel int, seconds float64, m Micro) {
		a.actions = append(a.actions, action{kind, channel, seconds, m})
	}
	evaluate := func(m Micro) {
		for g := range p.groups {
			if m.Whole && p.spread {
				for _, c := range p.order[g] {
					do(Sending, c, 0, m)
				}
				continue
			}
			do(Sending, p.command[g][i], 0, m)
		}
	}
	wait := func(m Micro) {
		for g := range p.groups {
			if m.Whole && p.spread {
				for _, c := range p.part[g] {
					do(Receiving, c, 0, m)
				}
				continue
			}
			do(Receiving, p.result[g][i], 0, m)
		}
	}
	for _, m := range p.micros {
		if !m.Whole && m.Patch != i {
			continue
		}
		if i > 0 || m.Evaluation > 0 {
			do(Receiving, p.turn[(i+p.shares-1)%p.shares], 0, m)
		}
		switch last := i == p.shares-1; {
		case m.Whole && last:
			evaluate(m)
			wait(m)
			for other := range p.shares - 1 {
				do(Sending, p.done[other], 0, m)
			}
			p.pass(i, m, do)
		case m.Whole:
			p.pass(i, m, do)
			do(Receiving, p.done[i], 0, m)
		default:
			evaluate(m)
			p.pass(i, m, do)
			wait(m)
		}
		do(Working, 0, p.handover, m)
	}
}

// pass gives the turn to the next sampler, unless the run ends there.
func (p *program) pass(i int, m Micro, do func(SpanKind, int, float64, Micro)) {
	if i == p.shares-1 && m.Evaluation == p.micros[len(p.micros)-1].Evaluation {
		return
	}
	do(Sending, p.turn[i], 0, m)
}
