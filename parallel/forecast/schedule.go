package forecast

import (
	"fmt"

	"patchbay/parallel/plan"
)

// timing is what a schedule needs to know of a workload: how many lanes and samplers there are and how long they take.
type timing struct {
	groups  int   // pipelines that run side by side: data parts times cfg groups
	stage   []int // by lane
	entries func(group int) int
	shares  int // patches, each with a sampler of its own
	micros  []plan.Micro
	// seconds of a lane's work in a micro-step, of the transfer of one entry's rows to the next lane, and of the
	// sampler between two evaluations of a patch
	work, transfer func(group, lane int, m plan.Micro) float64
	handover       float64
	ahead          int  // micro-steps that a sender may be ahead of its receiver; 0: rendezvous
	spread         bool // synchronous evaluations run on all stages at once, on their down lanes
}

// unbounded is the value of timing.ahead for links that never make their sender wait.
const unbounded = -1

// SpanKind says what a lane or sampler does during a Span.
type SpanKind uint8

// The kinds. Working: it computes (with the exchanges inside a stage). Sending, Receiving: it is blocked by a transfer.
const (
	Working SpanKind = iota
	Sending
	Receiving
)

// Span is an interval in which an actor did something, like profile.Span in measured runs. Between spans it waits.
type Span struct {
	Actor      int // first the lanes of all groups, then the samplers
	Kind       SpanKind
	Start, End float64 // seconds
	Micro      plan.Micro
}

// schedule runs what ranks and samplers do in the order of evaluator and team (package parallel) and session (package
// rank). A sampler waits for its turn, gives its patch to the first lane and passes the turn on. Every lane runs
// micro-steps in order: it receives the rows of all entries, computes, and sends them. The last lane returns its result
// to the sampler, which computes the next input of that patch. In a synchronous evaluation the last sampler runs the
// whole image for all and passes the turn on afterwards; if such evaluations are spread, it sends a command to every
// down lane and collects their results.
//
// Every lane waits for one thing at a time, so whether lanes are advanced in another order does not matter (G. Kahn,
// The semantics of a simple language for parallel programming, 1974). Only lanes that share a device compete: the one
// that can start first works first.
type schedule struct {
	timing
	lanes, down int         // lanes of a group, and those of them on the way down: one per stage
	lane        []laneState // of all groups
	busy        []float64   // by group and stage: when its last work ends
	ready       []float64   // by sampler: when it can give its next command; absent while it waits for an answer
	turn        float64     // when the next command may be given; absent during a synchronous evaluation
	commanded   []float64   // by micro-step: when its command was given
	answers     []answer    // by micro-step
	waiting     []int       // lanes that may be able to advance
	quiet       bool        // keep no spans
	spans       []Span
	end         float64
}

// absent is a time that is not known yet.
const absent = -1

// laneState is how far a lane has come.
type laneState struct {
	now              float64
	micro            int // its next micro-step, or the one that it is in
	received, worked bool
	// the link to the next lane: when rows arrive there and are taken, by entry of the latest micro-steps
	arrival, taken []float64
	sent, took     int     // micro-steps that were sent to the next lane, and taken from the one before
	free           float64 // when the link has finished its last transfer
}

// answer collects the ends of a micro-step.
type answer struct {
	count int
	last  float64
}

// newSchedule makes a schedule before its first command.
func newSchedule(t timing, quiet bool) *schedule {
	s := &schedule{
		timing: t, lanes: len(t.stage), quiet: quiet, lane: make([]laneState, t.groups*len(t.stage)),
		ready: make([]float64, t.shares), answers: make([]answer, len(t.micros)),
	}
	for _, stage := range t.stage {
		s.down = max(s.down, stage+1)
	}
	s.busy = make([]float64, t.groups*s.down)
	for i := range s.lane {
		n := s.depth() * t.entries(i/s.lanes)
		s.lane[i].arrival, s.lane[i].taken = make([]float64, n), make([]float64, n)
		s.skip(i)
	}
	return s
}

// depth returns how many micro-steps of a link are remembered.
func (s *schedule) depth() int {
	if s.ahead == unbounded {
		return len(s.micros)
	}
	return s.ahead + 1
}

// run returns when the last lane or sampler ends. The error says which lane waits for ever; the tests prove that no
// plan has one.
func (s *schedule) run() (seconds float64, err error) {
	s.command()
	for {
		for len(s.waiting) > 0 {
			i := s.waiting[len(s.waiting)-1]
			s.waiting = s.waiting[:len(s.waiting)-1]
			for s.advance(i) {
			}
		}
		i := s.earliest()
		if i < 0 {
			break
		}
		s.compute(i)
		s.waiting = append(s.waiting, i)
	}
	for i := range s.lane {
		if s.lane[i].micro < len(s.micros) {
			return 0, fmt.Errorf("deadlock: %s waits for ever", s.name(i))
		}
	}
	return s.end, nil
}

func (s *schedule) name(i int) string {
	if i >= len(s.lane) {
		return fmt.Sprintf("sampler %d", i-len(s.lane))
	}
	g, k := i/s.lanes, i%s.lanes
	name := fmt.Sprintf("stage %d", s.stage[k])
	if k >= s.down {
		name += " (back)"
	}
	if s.groups > 1 {
		name = fmt.Sprintf("group %d %s", g, name)
	}
	return name
}

// together reports whether micro-step j runs on all stages at once.
func (s *schedule) together(j int) bool { return s.spread && s.micros[j].Whole }

// skip passes over the micro-steps in which lane i has nothing to do.
func (s *schedule) skip(i int) {
	l := &s.lane[i]
	for i%s.lanes >= s.down && l.micro < len(s.micros) && s.together(l.micro) {
		l.micro++
	}
}

// command gives the commands whose samplers are ready: one of them for a patch, all for the whole image.
func (s *schedule) command() {
	for len(s.commanded) < len(s.micros) && s.turn != absent {
		j := len(s.commanded)
		m, at := s.micros[j], s.turn
		from, to := m.Patch, m.Patch+1
		if m.Whole {
			from, to = 0, s.shares
		}
		for _, ready := range s.ready[from:to] {
			if ready == absent {
				return
			}
			at = max(at, ready)
		}
		for i := from; i < to; i++ {
			s.ready[i] = absent
		}
		s.commanded, s.turn = append(s.commanded, at), at
		if m.Whole {
			s.turn = absent
		}
		for i := range s.lane {
			if k := i % s.lanes; k == 0 || k < s.down && s.together(j) {
				s.waiting = append(s.waiting, i)
			}
		}
	}
}

// answered notes a result of micro-step j. Once all are there, samplers prepare their next inputs.
func (s *schedule) answered(j int, at float64) {
	a, m, all := &s.answers[j], s.micros[j], s.groups
	if s.together(j) {
		all *= s.down
	}
	a.count++
	if a.last = max(a.last, at); a.count < all {
		return
	}
	from, to := m.Patch, m.Patch+1
	if m.Whole {
		from, to, s.turn = 0, s.shares, a.last
	}
	for i := from; i < to; i++ {
		s.ready[i] = a.last + s.handover
		s.span(len(s.lane)+i, Working, a.last, s.ready[i], m)
	}
	s.command()
}

// span notes what an actor did.
func (s *schedule) span(actor int, kind SpanKind, start, end float64, m plan.Micro) {
	s.end = max(s.end, end)
	if !s.quiet && end > start {
		s.spans = append(s.spans, Span{actor, kind, start, end, m})
	}
}

// advance does the next thing that lane i can do without competing for its device. It reports whether there was one.
func (s *schedule) advance(i int) bool {
	l := &s.lane[i]
	switch {
	case l.micro == len(s.micros):
		return false
	case !l.received:
		return s.receive(i)
	case !l.worked && s.contended(i):
		return false
	case !l.worked:
		s.compute(i)
		return true
	}
	if !s.send(i) {
		return false
	}
	l.micro, l.received, l.worked = l.micro+1, false, false
	s.skip(i)
	return true
}

// receive takes a command, or the rows of all entries from the lane before. A rendezvous is up to the sender.
func (s *schedule) receive(i int) bool {
	l, k := &s.lane[i], i%s.lanes
	if k == 0 || s.together(l.micro) {
		if len(s.commanded) <= l.micro {
			return false
		}
		l.now, l.received = max(l.now, s.commanded[l.micro]), true
		return true
	}
	from := &s.lane[i-1]
	if s.ahead == 0 {
		s.waiting = append(s.waiting, i-1)
		return false
	}
	if from.sent <= l.took {
		return false
	}
	n := s.entries(i / s.lanes)
	at := l.took % s.depth() * n
	for e := at; e < at+n; e++ {
		l.now = max(l.now, from.arrival[e])
		from.taken[e] = l.now
	}
	l.took, l.received = l.took+1, true
	s.waiting = append(s.waiting, i-1)
	return true
}

// send passes a result to the sampler, or the rows of all entries to the next lane.
func (s *schedule) send(i int) bool {
	l, g, k := &s.lane[i], i/s.lanes, i%s.lanes
	m := s.micros[l.micro]
	if k == s.lanes-1 || s.together(l.micro) {
		s.end = max(s.end, l.now)
		s.answered(l.micro, l.now)
		return true
	}
	to, n, seconds := &s.lane[i+1], s.entries(g), s.transfer(g, k, m)
	if s.ahead == 0 {
		if to.micro != l.micro || to.received {
			return false
		}
		for range n {
			start := max(l.now, to.now)
			l.now = start + seconds
			to.now = l.now
			s.span(i, Sending, start, l.now, m)
			s.span(i+1, Receiving, start, l.now, m)
		}
		to.received = true
		s.waiting = append(s.waiting, i+1)
		return true
	}
	if s.ahead > 0 && l.sent >= to.took+s.ahead {
		return false
	}
	at := l.sent % s.depth() * n
	for e := range n {
		if s.ahead > 0 && l.sent >= s.ahead {
			l.now = max(l.now, l.taken[(l.sent-s.ahead)%s.depth()*n+e])
		}
		l.free = max(l.now, l.free) + seconds
		l.arrival[at+e] = l.free
	}
	l.sent++
	s.waiting = append(s.waiting, i+1)
	return true
}

// contended reports whether another lane works on the device of lane i.
func (s *schedule) contended(i int) bool {
	stage := s.stage[i%s.lanes]
	return s.lanes > s.down && stage < s.down-1
}

// earliest returns the lane of those waiting for a shared device that can start to work first, -1: none waits.
func (s *schedule) earliest() int {
	best, first := -1, 0.
	if s.lanes == s.down {
		return best
	}
	for i := range s.lane {
		l := &s.lane[i]
		if l.micro == len(s.micros) || !l.received || l.worked || !s.contended(i) {
			continue
		}
		start := max(l.now, s.busy[s.device(i)])
		if best < 0 || start < first || start == first && l.now < s.lane[best].now {
			best, first = i, start
		}
	}
	return best
}

// device returns the index of a lane's device.
func (s *schedule) device(i int) int { return i/s.lanes*s.down + s.stage[i%s.lanes] }

// compute does the work of lane i in its micro-step.
func (s *schedule) compute(i int) {
	l, busy := &s.lane[i], &s.busy[s.device(i)]
	m, start := s.micros[l.micro], max(l.now, *busy)
	l.now, l.worked = start+s.work(i/s.lanes, i%s.lanes, m), true
	*busy = l.now
	s.span(i, Working, start, l.now, m)
}
