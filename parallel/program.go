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
	spread         bool // synchronous evaluations run on all stages at once, on their down lanes
	requests       int  // that wait in a row, all alike; evaluations are numbered through
	apart          bool // a request begins when the one before has ended, not when all its evaluations are queued
}

// program is the order of everything that ranks and samplers do, the same that evaluator, team and rankSession keep: a sampler waits for its turn,
// gives its patch to the first lane and passes the turn on; every lane takes micro-steps in order, receives the rows of all entries, computes, and
// sends them; the last lane's result goes to the sampler, which makes the next input of that patch. In a synchronous evaluation the last sampler
// runs the whole picture for all and passes the turn on afterwards; if such evaluations are spread, it gives every down lane its command and
// takes their results.
type program struct {
	timing
	net             network
	runs            []programRun
	link            [][]int // by group and lane: channel to the next lane
	lanes, samplers int
}

// programRun is the channels of the samplers of one request.
type programRun struct {
	start       int     // channel from the last sampler of the request before
	turn        []int   // channel from sampler m to the next one
	done        []int   // channel from the last sampler to sampler m
	command     [][]int // by group and sampler: channel to the first lane
	result      [][]int // by group and sampler: channel from the last lane
	order, part [][]int // by group and lane: channels from and to the last sampler, of spread evaluations
}

// newProgram lays out actors, channels and actions.
func newProgram(t timing) *program {
	t.requests = max(t.requests, 1)
	p := &program{timing: t, lanes: len(t.stage)}
	p.samplers = t.groups * p.lanes
	for g := range t.groups {
		for k, s := range t.stage {
			p.net.actors = append(p.net.actors, actor{name: p.laneName(g, k), device: 1 + g*p.lanes + s})
		}
	}
	for r := range t.requests {
		for m := range t.shares {
			name := fmt.Sprintf("sampler %d", m)
			if r > 0 {
				name += fmt.Sprintf(" of request %d", r)
			}
			p.net.actors = append(p.net.actors, actor{name: name})
		}
	}
	for g := range t.groups {
		var link []int
		for k := range p.lanes - 1 {
			link = append(link, p.channel(g*p.lanes+k, g*p.lanes+k+1, p.slots*p.entries(g), "rows"))
		}
		p.link = append(p.link, link)
	}
	for r := range t.requests {
		p.connect(r)
	}
	for g := range t.groups {
		for k := range p.lanes {
			p.lane(g, k)
		}
	}
	for r := range t.requests {
		for m := range t.shares {
			p.sampler(r, m)
		}
	}
	return p
}

// evaluations is how many one request has.
func (p *program) evaluations() int { return p.micros[len(p.micros)-1].Evaluation + 1 }

// of numbers a micro-step of request r.
func (p *program) of(r int, m Micro) Micro {
	m.Evaluation += r * p.evaluations()
	return m
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

func (p *program) connect(r int) {
	var run programRun
	first, last := p.samplers+r*p.shares, p.shares-1
	if r > 0 {
		run.start = p.channel(first-1, first, unbounded, "the turn")
	}
	for m := range p.shares {
		run.turn = append(run.turn, p.channel(first+m, first+(m+1)%p.shares, unbounded, "the turn"))
		run.done = append(run.done, p.channel(first+last, first+m, unbounded, "the synchronous result"))
	}
	for g := range p.groups {
		var command, result, order, part []int
		lane := g * p.lanes
		for m := range p.shares {
			command = append(command, p.channel(first+m, lane, unbounded, "a command"))
			result = append(result, p.channel(lane+p.lanes-1, first+m, unbounded, "a result"))
		}
		for k := range p.downLanes() {
			order = append(order, p.channel(first+last, lane+k, unbounded, "a command"))
			part = append(part, p.channel(lane+k, first+last, unbounded, "a part of the result"))
		}
		run.order, run.part = append(run.order, order), append(run.part, part)
		run.command, run.result = append(run.command, command), append(run.result, result)
	}
	p.runs = append(p.runs, run)
}

// downLanes is how many lanes a micro-step meets on its way down, one of each stage: those that compute in spread evaluations.
func (p *program) downLanes() int {
	most := 0
	for _, s := range p.stage {
		most = max(most, s+1)
	}
	return most
}

// lane is what lane k of group g does.
func (p *program) lane(g, k int) {
	a := &p.net.actors[g*p.lanes+k]
	do := func(kind SpanKind, channel int, seconds float64, m Micro) {
		a.actions = append(a.actions, action{kind, channel, seconds, m})
	}
	for r, run := range p.runs {
		for _, m := range p.micros {
			p.micro(g, k, &run, p.of(r, m), do)
		}
	}
}

// micro is one micro-step of lane k of group g.
func (p *program) micro(g, k int, run *programRun, m Micro, do func(SpanKind, int, float64, Micro)) {
	if m.Whole && p.spread {
		if k >= p.downLanes() {
			return
		}
		do(Receiving, run.order[g][k], 0, m)
		do(Working, 0, p.work(g, k, m), m)
		do(Sending, run.part[g][k], 0, m)
		return
	}
	owner, entries := m.Patch, p.entries(g)
	if m.Whole {
		owner = p.shares - 1
	}
	if k == 0 {
		do(Receiving, run.command[g][owner], 0, m)
	} else {
		for range entries {
			do(Receiving, p.link[g][k-1], 0, m)
		}
	}
	do(Working, 0, p.work(g, k, m), m)
	if k == p.lanes-1 {
		do(Sending, run.result[g][owner], 0, m)
		return
	}
	for range entries {
		do(Sending, p.link[g][k], p.transfer(g, k, m), m)
	}
}

// sampler is what the sampler of patch i of request r does.
func (p *program) sampler(r, i int) {
	a, run := &p.net.actors[p.samplers+r*p.shares+i], &p.runs[r]
	do := func(kind SpanKind, channel int, seconds float64, m Micro) {
		a.actions = append(a.actions, action{kind, channel, seconds, m})
	}
	each := func(kind SpanKind, all, one [][]int, m Micro) {
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
	evaluate := func(m Micro) { each(Sending, run.order, run.command, m) }
	wait := func(m Micro) { each(Receiving, run.part, run.result, m) }
	for _, m := range p.micros {
		if !m.Whole && m.Patch != i {
			continue
		}
		ends := i == p.shares-1 && m.Evaluation == p.evaluations()-1 // all is queued then
		next := ends && r+1 < p.requests
		first := i == 0 && m.Evaluation == 0
		m = p.of(r, m)
		switch {
		case first && r > 0:
			do(Receiving, run.start, 0, m)
		case !first:
			do(Receiving, run.turn[(i+p.shares-1)%p.shares], 0, m)
		}
		pass := func() {
			switch {
			case !ends:
				do(Sending, run.turn[i], 0, m)
			case next && !p.apart:
				do(Sending, p.runs[r+1].start, 0, m)
			}
		}
		switch last := i == p.shares-1; {
		case m.Whole && last:
			evaluate(m)
			if ends {
				pass()
			}
			wait(m)
			for other := range p.shares - 1 {
				do(Sending, run.done[other], 0, m)
			}
			if !ends {
				pass()
			}
		case m.Whole:
			pass()
			do(Receiving, run.done[i], 0, m)
		default:
			evaluate(m)
			pass()
			wait(m)
		}
		do(Working, 0, p.handover, m)
		if next && p.apart {
			do(Sending, p.runs[r+1].start, 0, m)
		}
	}
}
