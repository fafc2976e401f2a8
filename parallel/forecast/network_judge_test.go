package forecast

import (
	"patchbay/parallel/plan"
)

// network is how schedules are judged: a set of actors that exchange messages over channels, each doing a fixed list of
// actions in order. Running it gives the time of every action, or the reason why it deadlocks. Actors are sequential
// and every channel has one sender and one receiver, so whether the network finishes does not depend on the order in
// which actors are visited (G. Kahn, The semantics of a simple language for parallel programming, 1974; bounded
// channels preserve this as long as nobody asks whether a channel is full). Of actors that share a device, the one that
// is ready first works first.
type network struct {
	actors   []actor
	channels []channel
}

type actor struct {
	name    string
	actions []action
	// device is what the actor works on. Actors of the same device (> 0) work one at a time, first come, first served.
	// 0: a device of its own.
	device int
}

// do appends an action.
func (a *actor) do(kind SpanKind, channel int, seconds float64, m plan.Micro) {
	a.actions = append(a.actions, action{kind, channel, seconds, m})
}

// channel carries messages in order. With slots > 0 up to that many may be in flight; transfers then run concurrently
// with computation, one at a time. With 0 slots sender and receiver meet (rendezvous): nothing is buffered.
type channel struct {
	from, to int // actors
	slots    int
}

// action is one thing that an actor does.
type action struct {
	kind    SpanKind
	channel int     // of a send or receive
	seconds float64 // of work; of a send: of the transfer
	micro   plan.Micro
}

// channelState is the state of a channel during a run.
type channelState struct {
	sent, received int
	arrival        []float64 // of message i at the receiver
	taken          []float64 // when the receiver took message i
	free           float64   // when the link has finished its last transfer
	offered        float64   // rendezvous: when the sender arrived; < 0: it has not
	sender         action    // rendezvous: what it offers
}

// networkRun executes a network.
type networkRun struct {
	n     *network
	now   []float64 // by actor
	next  []int     // by actor: index of its next action
	chans []channelState
	busy  []float64 // by device: when its last work ends
	share []bool    // by actor: others use its device too
	spans []Span
	quiet bool // keep no spans
}

// stuckError is a schedule that cannot finish. The tests prove that no plan has one, and explain who waits for whom in
// others that do.
type stuckError struct {
	run   *networkRun
	actor int // one that waits forever
}

// Error names the actor.
func (e *stuckError) Error() string {
	return "deadlock: " + e.run.n.actors[e.actor].name + " waits for ever"
}

// run executes all actions and returns the end time of every actor and, unless quiet, the spans. The error is a
// *stuckError.
func (n *network) run(quiet bool) (ends []float64, spans []Span, err error) {
	r := &networkRun{
		n: n, now: make([]float64, len(n.actors)), next: make([]int, len(n.actors)),
		chans: make([]channelState, len(n.channels)), quiet: quiet,
	}
	r.findShared()
	for i := range r.chans {
		r.chans[i].offered = -1
	}
	ready := make([]int, len(n.actors))
	for i := range ready {
		ready[i] = i
	}
	for len(ready) > 0 {
		for len(ready) > 0 { // actions that need no shared device come first
			a := ready[len(ready)-1]
			ready = ready[:len(ready)-1]
			for moved := true; moved && !r.done(a); {
				if r.head(a).kind == Working {
					if r.share[a] {
						break
					}
					r.work(a)
					continue
				}
				var other int
				if other, moved = r.step(a); other >= 0 {
					ready = append(ready, other)
				}
			}
		}
		if a := r.earliest(); a >= 0 {
			r.work(a)
			ready = append(ready, a)
		}
	}
	for a := range n.actors {
		if !r.done(a) {
			return nil, nil, &stuckError{r, a}
		}
	}
	return r.now, r.spans, nil
}

func (r *networkRun) done(a int) bool { return r.next[a] == len(r.n.actors[a].actions) }

func (r *networkRun) head(a int) action { return r.n.actors[a].actions[r.next[a]] }

// step tries the next action of an actor, a send or receive. It returns an actor that may be able to continue because
// of it (-1: none) and whether the action is complete.
func (r *networkRun) step(a int) (other int, moved bool) {
	if do := r.head(a); do.kind == Sending {
		return r.send(a, do)
	}
	return r.receive(a, r.head(a))
}

// findShared finds the actors that share their device; the others work whenever they can.
func (r *networkRun) findShared() {
	users := map[int]int{}
	for _, a := range r.n.actors {
		users[a.device]++
		r.busy = append(r.busy, make([]float64, max(0, a.device+1-len(r.busy)))...)
	}
	for _, a := range r.n.actors {
		r.share = append(r.share, a.device > 0 && users[a.device] > 1)
	}
}

// earliest returns the actor on a shared device whose next action is the work that can start first, -1: there is none.
func (r *networkRun) earliest() int {
	best, first := -1, 0.0
	for a, shared := range r.share {
		if !shared || r.done(a) || r.head(a).kind != Working {
			continue
		}
		if start := r.start(a); best < 0 || start < first || start == first && r.now[a] < r.now[best] {
			best, first = a, start
		}
	}
	return best
}

// start returns when an actor can start to work on its device.
func (r *networkRun) start(a int) float64 {
	if d := r.n.actors[a].device; d > 0 {
		return max(r.now[a], r.busy[d])
	}
	return r.now[a]
}

func (r *networkRun) work(a int) {
	do, start := r.head(a), r.start(a)
	r.now[a] = start + do.seconds
	r.next[a]++
	if d := r.n.actors[a].device; d > 0 {
		r.busy[d] = r.now[a]
	}
	r.record(a, do, start, r.now[a])
}

// send starts a transfer. At a rendezvous it offers the message, and the receiver advances both actors.
func (r *networkRun) send(a int, do action) (int, bool) {
	c, s := r.n.channels[do.channel], &r.chans[do.channel]
	if c.slots == 0 {
		if s.offered >= 0 {
			return -1, false
		}
		s.offered, s.sender = r.now[a], do
		return c.to, false
	}
	if c.slots > 0 && s.sent >= s.received+c.slots {
		return -1, false
	}
	start := r.now[a]
	if c.slots > 0 && s.sent >= c.slots {
		start = max(start, s.taken[s.sent-c.slots])
	}
	r.now[a] = start
	s.free = max(start, s.free) + do.seconds
	s.arrival = append(s.arrival, s.free)
	s.sent++
	r.next[a]++
	return c.to, true
}

// receive takes a message that has been sent.
func (r *networkRun) receive(a int, do action) (int, bool) {
	c, s := r.n.channels[do.channel], &r.chans[do.channel]
	if c.slots == 0 {
		if s.offered < 0 {
			return -1, false
		}
		start := max(r.now[a], s.offered)
		end := start + s.sender.seconds
		r.record(c.from, s.sender, start, end)
		r.record(a, do, start, end)
		r.now[a], r.now[c.from] = end, end
		r.next[a]++
		r.next[c.from]++
		s.offered = -1
		return c.from, true
	}
	if s.received >= s.sent {
		return -1, false
	}
	r.now[a] = max(r.now[a], s.arrival[s.received])
	s.taken = append(s.taken, r.now[a])
	s.received++
	r.next[a]++
	return c.from, true
}

func (r *networkRun) record(a int, do action, start, end float64) {
	if !r.quiet && end > start {
		r.spans = append(r.spans, Span{Actor: a, Kind: do.kind, Start: start, End: end, Micro: do.micro})
	}
}
