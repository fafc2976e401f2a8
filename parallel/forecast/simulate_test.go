package forecast

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/parallel/plan"
)

// plainTiming returns the timing of equal micro-steps of one second with one entry, on straight or folded stages.
func plainTiming(stages, patches, evaluations, warmup int, folded bool, ahead int) timing {
	t := timing{
		groups: 1, shares: patches, ahead: ahead, entries: func(int) int { return 1 },
		work: func(_, _ int, m plan.Micro) float64 {
			return map[bool]float64{true: float64(patches), false: 1}[m.Whole]
		},
		transfer: func(int, int, plan.Micro) float64 { return 0 },
	}
	for e := range evaluations {
		if e < warmup || patches == 1 {
			t.micros = append(t.micros, plan.Micro{Evaluation: e, Whole: true})
			continue
		}
		for m := range patches {
			t.micros = append(t.micros, plan.Micro{Evaluation: e, Patch: m})
		}
	}
	for s := range stages {
		t.stage = append(t.stage, s)
	}
	if folded {
		for s := stages - 2; s >= 0; s-- {
			t.stage = append(t.stage, s)
		}
	}
	return t
}

// TestScheduleNeedsNoBuffers checks that every pipeline of 1 to 8 stages and 1 to 64 patches, straight and folded,
// with 1 to 3 entries, completes although every transfer is a rendezvous.
func TestScheduleNeedsNoBuffers(t *testing.T) {
	for stages := 1; stages <= 8; stages++ {
		for patches := 1; patches <= 64; patches++ {
			for _, folded := range []bool{false, true} {
				timing := plainTiming(stages, patches, 4, 1+patches%2, folded, 0)
				timing.entries = func(int) int { return 1 + patches%3 }
				for _, timing.spread = range []bool{false, true} {
					p := newProgram(timing)
					if _, _, err := p.net.run(true); err != nil {
						t.Fatalf("%d stages, %d patches, folded %v, spread %v: %v", stages, patches, folded, timing.spread, err)
					}
				}
			}
		}
	}
}

// returnRing returns the order of a pipeline whose last stage sends its result straight back to the first one, which
// receives it only when it starts the next evaluation (xDiT). It needs links that hold floor(patches/stages).
func returnRing(stages, patches, evaluations, slots int) *network {
	n := &network{}
	for s := range stages {
		n.actors = append(n.actors, actor{name: fmt.Sprintf("stage %d", s)})
		n.channels = append(n.channels, channel{from: s, to: (s + 1) % stages, slots: slots})
	}
	for s := range stages {
		for e := range evaluations {
			for p := range patches {
				m := plan.Micro{Evaluation: e, Patch: p}
				from := (s + stages - 1) % stages
				if s > 0 || e > 0 {
					n.actors[s].actions = append(n.actors[s].actions, action{kind: Receiving, channel: from, micro: m})
				}
				n.actors[s].actions = append(n.actors[s].actions, action{kind: Working, seconds: 1, micro: m})
				if s < stages-1 || e < evaluations-1 {
					n.actors[s].actions = append(n.actors[s].actions, action{kind: Sending, channel: s, micro: m})
				}
			}
		}
	}
	return n
}

// explain follows the chain of waits from a stuck actor until it closes a cycle or reaches an actor that has finished.
func (e *stuckError) explain() (waits []string, cycle bool) {
	seen := map[int]int{}
	r, a := e.run, e.actor
	for {
		if from, ok := seen[a]; ok {
			return waits[from:], true
		}
		seen[a] = len(waits)
		if r.done(a) {
			return append(waits, r.n.actors[a].name+" has nothing more to do"), false
		}
		do := r.head(a)
		c := r.n.channels[do.channel]
		peer, verb := c.to, "to send"
		if do.kind == Receiving {
			peer, verb = c.from, "to receive"
		}
		waits = append(waits, fmt.Sprintf("%s waits %s %s: %s", r.n.actors[a].name, verb, do.micro, r.n.actors[peer].name))
		a = peer
	}
}

// TestDeadlockIsFound checks that orders that hang are found: the return ring needs exactly floor(patches/stages)
// buffered messages on each link, and a message that is never sent is distinguished from a cycle.
func TestDeadlockIsFound(t *testing.T) {
	for stages := 2; stages <= 6; stages++ {
		for patches := 1; patches <= 24; patches++ {
			need := patches / stages
			for slots := range need + 2 {
				_, _, err := returnRing(stages, patches, 4, slots).run(true)
				var dead *stuckError
				if hangs := errors.As(err, &dead); hangs != (slots < need) {
					t.Fatalf("%d stages, %d patches, %d slots: deadlock %v, want %v", stages, patches, slots, hangs, slots < need)
				}
				if dead == nil {
					continue
				}
				if waits, cycle := dead.explain(); !cycle || len(waits) < 2 {
					t.Fatalf("%d stages, %d patches, %d slots: %v, %q is no circle", stages, patches, slots, dead, waits)
				}
			}
		}
	}
	n := &network{
		actors:   []actor{{name: "a"}, {name: "b", actions: []action{{kind: Receiving}}}},
		channels: []channel{{from: 0, to: 1}},
	}
	_, _, err := n.run(true)
	var dead *stuckError
	if !errors.As(err, &dead) || !strings.Contains(err.Error(), "b waits") {
		t.Fatalf("missing sender: got %v", err)
	}
	if waits, cycle := dead.explain(); cycle || !slices.Contains(waits, "a has nothing more to do") {
		t.Errorf("missing sender: %q", waits)
	}
}

// TestPipelineTimes compares runs of equal micro-steps on straight pipelines with the closed form of PipeFusion: w
// synchronous evaluations of N M slots each, then (K-w) max(M, N) slots and N-1 to drain.
func TestPipelineTimes(t *testing.T) {
	for stages := 1; stages <= 8; stages++ {
		for patches := 2; patches <= 20; patches++ {
			for warmup := range 3 {
				const evaluations = 9
				p := newProgram(plainTiming(stages, patches, evaluations, warmup, false, unbounded))
				ends, _, err := p.net.run(true)
				if err != nil {
					t.Fatal(err)
				}
				got := 0.0
				for _, e := range ends {
					got = max(got, e)
				}
				k, n, m, w := float64(evaluations), float64(stages), float64(patches), float64(warmup)
				want := w*n*m + (k-w-1)*max(m, n) + m + n - 1
				if !near(got, want, 1e-9) {
					t.Errorf("%d stages, %d patches, warm-up %d: %.3f slots, closed form %.3f", stages, patches, warmup, got, want)
				}
			}
		}
	}
}

// TestSpreadWarmupTimes checks that w spread evaluations take M slots each instead of N M.
func TestSpreadWarmupTimes(t *testing.T) {
	for stages := 1; stages <= 8; stages++ {
		for patches := 2; patches <= 20; patches++ {
			const evaluations, warmup = 9, 2
			timing := plainTiming(stages, patches, evaluations, warmup, false, unbounded)
			timing.spread = true
			ends, _, err := newProgram(timing).net.run(true)
			if err != nil {
				t.Fatal(err)
			}
			got := 0.0
			for _, e := range ends {
				got = max(got, e)
			}
			n, m := float64(stages), float64(patches)
			if want := warmup*m + (evaluations-warmup-1)*max(m, n) + m + n - 1; !near(got, want, 1e-9) {
				t.Errorf("%d stages, %d patches: %.3f slots, closed form %.3f", stages, patches, got, want)
			}
		}
	}
}

// TestFoldedStagesShareTheirDevice checks that the lanes of a stage never work at the same time.
func TestFoldedStagesShareTheirDevice(t *testing.T) {
	p := newProgram(plainTiming(4, 9, 6, 1, true, 2))
	_, spans, err := p.net.run(false)
	if err != nil {
		t.Fatal(err)
	}
	busy := map[int][]Span{}
	for _, s := range spans {
		if d := p.net.actors[s.Actor].device; d > 0 && s.Kind == Working {
			busy[d] = append(busy[d], s)
		}
	}
	if len(busy) != 4 {
		t.Fatalf("%d devices worked, want 4", len(busy))
	}
	for d, list := range busy {
		slices.SortFunc(list, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
		for i := 1; i < len(list); i++ {
			if list[i].Start < list[i-1].End-1e-12 {
				t.Fatalf("device %d works on %s and %s at once", d, list[i-1].Micro, list[i].Micro)
			}
		}
	}
}
