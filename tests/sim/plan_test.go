package sim

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"patchbay/ipc/message"
)

// step is one thing that a plan has in store: a fault, or what a client does.
type step struct {
	kind  string
	at    time.Duration // since the world began; for what concerns a job, since it was submitted
	lasts time.Duration
	node  int    // the daemon that it hits
	job   int    // the job that it is about; 0: none
	n     int    // of a worker's fault: the attempt; of a daemon's: the message at which it happens, 0: at once
	what  string // the messages that are counted, by a part of their text
	lost  bool   // that message does not arrive; otherwise its answer does not
}

func (s step) String() string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%8.3fs  %s", s.at.Seconds(), s.kind)
	if s.job > 0 {
		_, _ = fmt.Fprintf(&b, " %s", idOf(s.job))
	}
	if s.job == 0 || s.kind == submits {
		_, _ = fmt.Fprintf(&b, " at %s", names[s.node])
	}
	switch {
	case s.kind == oneOnly:
		_, _ = fmt.Fprintf(&b, ", key %d", s.n)
	case s.job > 0 && s.n > 0:
		_, _ = fmt.Fprintf(&b, ", attempt %d", s.n)
	case s.n > 0:
		_, _ = fmt.Fprintf(&b, ", with message %d to %q, lost %v", s.n, s.what, s.lost)
	}
	if s.lasts > 0 {
		_, _ = fmt.Fprintf(&b, ", for %s", s.lasts.Round(time.Millisecond))
	}
	return b.String()
}

// The daemons, by number, and the IDs of jobs.
var names = []string{"A", "B"}

func idOf(job int) string { return fmt.Sprintf("j%06d", job) }

// numberOf returns the number of a job; -1 if its ID was made of a unique key.
func numberOf(id string) (job int) {
	if _, err := fmt.Sscanf(id, "j%06d", &job); err != nil {
		return -1
	}
	return job
}

// The kinds of steps. Those of the world:
const (
	cut       = "cut"        // one link of a daemon
	away      = "away"       // a daemon does not reach the server
	crash     = "crash"      // a daemon dies and is started again
	stop      = "stop"       // the server stops in order
	kill      = "kill"       // the server dies
	ahead     = "ahead"      // a daemon dies, and its clock is 25 hours ahead when it is started again, or right again
	full      = "full"       // the records or the requests may not take more room
	twin      = "twin"       // another daemon of the same name is started, as from a copy of its store
	forget    = "forget"     // the server dies, and its disk has lost what was written for a while
	damage    = "damage"     // the server dies, and its disk has lost the ends of files, or has other bytes in them
	pauses    = "pause"      // a daemon is told to begin no job for a while
	ends      = "end"        // a daemon is told to end in order, and is started again
	submits   = "submit"     // a client submits a job
	twoBodies = "two bodies" // another client submits another job under its ID, at another daemon
	again     = "again"      // the client submits it again
	cancels   = "cancel"     // a client cancels it
	revives   = "retry"      // a client retries it once it has ended without a result
	dies      = "dies"       // the worker that runs it dies
	fails     = "fails"      // its node fails
	hangs     = "hangs"      // the worker that runs it does nothing for a while, and is killed then
	slow      = "slow"       // it takes longer
	moves     = "move"       // a client moves it in the queue, to the front or to a priority
	drops     = "drop"       // a client deletes its files once it is done
	// Of clients, from the beginning:
	ties  = "tie"   // the job is tied to the client, which leaves after a while
	hurry = "hurry" // the job expires if it waits too long
	large = "large" // its body has several pieces
	reads = "read"  // a client reads its events, with a pause after each
	// Of the order of jobs, from the beginning:
	first   = "front"  // the job is put in front of all that wait
	urgent  = "urgent" // its priority is high
	lowly   = "lowly"  // its priority is low
	later   = "later"  // it is not to begin before a time
	oneOnly = "unique" // it is submitted under one of a few keys, not under its ID
)

// plan is what a world has in store.
type plan struct {
	seed  uint64
	steps []step
	// limits of waiting jobs, and of the jobs of a client that have not ended; 0: none
	queue, perClient int
	crowd            int           // how many jobs one client submits at once
	drain            time.Duration // how long runs may go on at a daemon that is told to end
}

// clients is how many clients the jobs count for.
const clients = 4

// from returns the client that a job counts for.
func (p plan) from(job int) string {
	if job < 0 {
		return "client of keys"
	}
	if job <= p.crowd {
		return "client 0"
	}
	if p.crowd > 0 {
		return fmt.Sprint("client ", 1+job%(clients-1))
	}
	return fmt.Sprint("client ", job%clients)
}

func (p plan) has(job int, kind string) (step, bool) {
	for _, s := range p.steps {
		if s.job == job && s.kind == kind {
			return s, true
		}
	}
	return step{}, false
}

// without returns the plan without some of its steps, and without what is about jobs that are not submitted.
func (p plan) without(from, to int) plan {
	submitted := map[int]bool{0: true}
	rest := slices.Concat(p.steps[:from], p.steps[to:])
	for _, s := range rest {
		if s.kind == submits {
			submitted[s.job] = true
		}
	}
	p.steps = slices.DeleteFunc(rest, func(s step) bool { return !submitted[s.job] })
	return p
}

// of returns the steps about a job.
func (p plan) of(job int) (out []step) {
	for _, s := range p.steps {
		if s.job == job {
			out = append(out, s)
		}
	}
	return out
}

// dice are what happens by chance for a reason, whatever else happens: they do not change when a plan loses a step.
func (p plan) dice(reason ...any) *rand.Rand {
	h := fnv.New64()
	_, _ = fmt.Fprint(h, reason...)
	return rand.New(rand.NewPCG(p.seed, h.Sum64()))
}

// between returns a time between two others.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// chances are what a plan may hold of each kind: on the average, how many of a kind that hits the world, or how likely
// one is for a job.
var chances = []struct {
	kind      string
	chance    float64
	low, high time.Duration // how long it lasts
}{
	{cut, 3, 0, 0},
	{away, 2, 100 * time.Millisecond, 30 * time.Second},
	{crash, 2, 0, 20 * time.Second},
	{stop, .7, 0, 8 * time.Second},
	{kill, .7, 0, 8 * time.Second},
	{ahead, .3, 0, 20 * time.Second},
	{full, .15, 0, 30 * time.Second},
	{twin, .3, 0, 40 * time.Second},
	{forget, 1.5, 0, 20 * time.Second},
	{damage, 1.5, 0, 5 * time.Second},
	{twoBodies, .1, 0, 0},
	{again, .15, 0, 3 * time.Second},
	{cancels, .12, 0, 3 * time.Second},
	{revives, .3, 0, 3 * time.Second},
	{dies, .05, 0, 0},
	{fails, .03, 0, 0},
	{hangs, .05, 5 * time.Second, 40 * time.Second},
	{slow, .05, 5 * time.Second, 25 * time.Second},
	{ties, .1, 0, 10 * time.Second},
	{hurry, .1, time.Second, 10 * time.Second},
	{large, .1, 0, 0},
	{reads, .2, 0, 3 * time.Second},
}

// ofWorld are the kinds of steps that hit no certain job.
var ofWorld = []string{cut, away, crash, stop, kill, ahead, full, twin, forget, damage, pauses, ends}

// ofWorkers are the kinds of steps that hit the worker of a job.
var ofWorkers = []string{dies, fails, hangs, slow}

// What a disk loses, daemons write again that have run all the time: a plan has either losses, with SIM_LOSSES=1,
// or daemons that die.
var (
	losses = []string{forget, damage}
	deaths = []string{crash, ahead, twin}
)

// jobsPerPlan is how many jobs most plans submit, within lifetime. A client of every fourth plan submits crowd of them,
// or many, at once.
const (
	jobsPerPlan = 40
	lifetime    = 40 * time.Second
	crowd, many = 30, 230
	rush        = 2 * time.Second
)

// messages are what a fault may wait for: any message, and those that write records, requests and events.
var messages = []string{
	"", " $KV." + message.JobBucket + ".j", " $KV." + message.JobBucket + ".j", " $KV." + message.RequestBucket + ".j",
	" " + strings.TrimSuffix(message.EventSubject("", ""), "."),
}

// planOf returns the plan of a seed.
func planOf(seed uint64) plan {
	p, jobs := plan{seed: seed}, jobsPerPlan
	r := p.dice("plan")
	if r.IntN(2) == 0 {
		p.queue, p.perClient = 4+r.IntN(8), 2+r.IntN(4)
	}
	if seed%4 == 1 {
		p.queue, p.perClient, p.crowd = 0, 0, crowd
	}
	if seed%40 == 21 {
		jobs, p.crowd = jobs-crowd+many, many
	}
	never := losses
	if setting("SIM_LOSSES", 0) > 0 {
		never = deaths
	}
	for _, c := range chances {
		if !slices.Contains(ofWorld, c.kind) || slices.Contains(never, c.kind) {
			continue
		}
		for range poisson(r, c.chance) {
			s := step{kind: c.kind, at: between(r, 0, lifetime), lasts: between(r, c.low, c.high), node: r.IntN(len(names))}
			if r.IntN(3) > 0 {
				s.n, s.what, s.lost = 1+r.IntN(6), messages[r.IntN(len(messages))], r.IntN(2) == 0
			}
			if s.kind != twin || setting("SIM_TWINS", 0) > 0 {
				p.steps = append(p.steps, s)
			}
		}
	}
	managed := p.dice("managed")
	for range poisson(managed, .5) {
		p.steps = append(p.steps, step{
			kind: pauses, at: between(managed, 0, lifetime), lasts: between(managed, 10*time.Second, time.Minute),
			node: managed.IntN(len(names)),
		})
	}
	ending := p.dice("end")
	p.drain = between(ending, 0, 20*time.Second)
	for range poisson(ending, .7) {
		p.steps = append(p.steps, step{
			kind: ends, at: between(ending, 0, lifetime), lasts: between(ending, 0, 10*time.Second),
			node: ending.IntN(len(names)),
		})
	}
	for job := 1; job <= jobs; job++ {
		if managed.IntN(10) == 0 {
			p.steps = append(p.steps, step{kind: moves, at: between(managed, 0, 2*time.Second), job: job})
		}
		if r := p.dice("drop", job); r.IntN(12) == 0 {
			p.steps = append(p.steps, step{kind: drops, at: between(r, 0, 20*time.Second), job: job})
		}
		submit := step{kind: submits, at: between(r, 0, lifetime), node: r.IntN(len(names)), job: job}
		if job <= p.crowd {
			submit.at = submit.at * rush / lifetime
		}
		p.steps = append(p.steps, submit)
		if order := p.order(job); len(order) > 0 {
			if p.steps = append(p.steps, order...); order[0].kind == oneOnly {
				continue
			}
		}
		for _, c := range chances {
			if slices.Contains(ofWorld, c.kind) || r.Float64() >= c.chance {
				continue
			}
			s := step{kind: c.kind, at: between(r, 0, 2*time.Second), lasts: between(r, c.low, c.high), job: job}
			if slices.Contains(ofWorkers, c.kind) {
				s.n = 1 + r.IntN(1+r.IntN(2))
			}
			p.steps = append(p.steps, s)
		}
	}
	slices.SortStableFunc(p.steps, func(a, b step) int { return int(a.at - b.at) })
	return p
}

// order returns what the client of a job says about when it is to run.
func (p plan) order(job int) (out []step) {
	r := p.dice("order", job)
	at := func(kind string, low, high time.Duration) {
		out = append(out, step{kind: kind, job: job, lasts: between(r, low, high)})
	}
	switch n := r.IntN(100); {
	case n < 10 && job > p.crowd:
		key := 1 + r.IntN(keys)
		return []step{{kind: oneOnly, job: job, n: key}}
	case n < 15:
		at(first, 0, 0)
	case n < 25:
		at(urgent, 0, 0)
	case n < 35:
		at(lowly, 0, 0)
	}
	if r.IntN(10) == 0 {
		at(later, time.Second, 15*time.Second)
	}
	return out
}

// keys is how many unique keys there are, and window how long after a job with one was handed in no other is made.
const keys = 2

func (p plan) window(key int) time.Duration { return between(p.dice("window", key), 0, 20*time.Second) }

// poisson returns a number that is mean on the average.
func poisson(r *rand.Rand, mean float64) (n int) {
	for left := r.ExpFloat64(); left < mean; left += r.ExpFloat64() {
		n++
	}
	return n
}
