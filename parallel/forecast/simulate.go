package forecast

import (
	"cmp"
	"fmt"
	"slices"

	"patchbay/parallel/plan"
)

// Simulation is the predicted course of one request on a plan.
type Simulation struct {
	Plan    plan.Plan
	Seconds float64 // from the first evaluation to the last sampler step, without text encoding, prefaces and VAE
	// WarmupSeconds is the time of the synchronous evaluations. StepSeconds is that of one other evaluation in the
	// steady state: the mean time between their ends. Without any it is the mean of the synchronous ones.
	WarmupSeconds, StepSeconds float64
	// HandoverSeconds is the part of Seconds in which no device works because a sampler does.
	HandoverSeconds float64
	Ranks           []RankTime
	// Spans are in the order of recording. Actors are the names of the actors, first stages, then samplers.
	Spans  []Span
	Actors []string
}

// RankTime says where the time of one rank goes, in seconds. Compute + Exchange + Send + Idle is Simulation.Seconds.
type RankTime struct {
	Compute  float64 `json:"compute"`  // arithmetic, memory, launching operations
	Exchange float64 `json:"exchange"` // exchanges inside a stage that are not hidden, with waiting for slower ranks
	Hidden   float64 `json:"hidden"`   // exchanges hidden behind computation; already inside Compute
	Send     float64 `json:"send"`     // blocked by a pipeline transfer
	Idle     float64 `json:"idle"`     // waiting for rows, for the sampler or for the end: bubbles
	// Products, Attention and Other are what Compute is made of: matrix products, attention, and element-wise work.
	// Compute is more than their sum by the gaps between operations, or where launching these takes longer.
	Products, Attention, Other float64 `json:"-"`
}

// simulate runs the schedule of c, which has no deadlock (proved in the tests for every size). quiet leaves out Spans,
// Ranks and the breakdown of Seconds.
func simulate(c *costs, quiet bool) *Simulation {
	t := timing{
		groups: c.plan.Data * c.plan.CFG, shares: len(c.Patches), micros: c.micros(),
		handover: c.cluster.Device.Handover, spread: c.plan.Spread,
		work:     func(g, k int, m plan.Micro) float64 { return c.work(g, k, m).seconds },
		transfer: func(g, k int, m plan.Micro) float64 { return c.work(g, k, m).transfer },
		entries:  func(g int) int { return len(c.entries[g%c.plan.CFG]) },
	}
	if c.plan.Overlap {
		t.ahead = plan.PostsAhead
	}
	for k := range c.Lanes {
		t.stage = append(t.stage, c.Stage(k))
	}
	course := newSchedule(t, quiet)
	seconds, err := course.run()
	if err != nil {
		panic(fmt.Sprintf("forecast: plan %s: %v", c.plan, err))
	}
	out := &Simulation{Plan: c.plan, Spans: course.spans, Seconds: seconds}
	if quiet {
		return out
	}
	for i := range len(course.lane) + course.shares {
		out.Actors = append(out.Actors, course.name(i))
	}
	out.steady(c, len(course.lane))
	out.ranks(c, course)
	return out
}

// steady computes warm-up, step and handover times from the spans.
func (s *Simulation) steady(c *costs, samplers int) {
	ends := make([]float64, c.Evaluations) // of each evaluation at the last lane
	busy := 0.0
	var working []Span
	for _, sp := range s.Spans {
		if sp.Actor >= samplers {
			continue
		}
		ends[sp.Micro.Evaluation] = max(ends[sp.Micro.Evaluation], sp.End)
		working = append(working, sp)
	}
	slices.SortStableFunc(working, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	until := 0.0
	for _, sp := range working {
		if sp.End > until {
			busy += sp.End - max(until, sp.Start)
			until = sp.End
		}
	}
	s.HandoverSeconds = max(0, s.Seconds-busy)
	first, last := c.whole(), c.Evaluations-1
	if first > 0 {
		s.WarmupSeconds = ends[first-1] + c.cluster.Device.Handover
	}
	switch {
	case first < last: // the first stale evaluation fills the pipeline
		s.StepSeconds = (ends[last] - ends[first]) / float64(last-first)
	case first == last:
		s.StepSeconds = ends[last] - s.WarmupSeconds
	default:
		s.StepSeconds = s.Seconds / float64(c.Evaluations)
	}
}

// ranks breaks down the time of every rank.
func (s *Simulation) ranks(c *costs, course *schedule) {
	stand := make([]float64, len(s.Actors)) // transfers that keep an actor from working
	for _, sp := range s.Spans {
		if sp.Kind != Working {
			stand[sp.Actor] += sp.End - sp.Start
		}
	}
	s.Ranks = make([]RankTime, c.plan.Ranks())
	for g := range course.groups {
		for k := range course.lanes {
			var members []int
			for r := range s.Ranks {
				at := c.mesh.At(r)
				if at.Data*c.plan.CFG+at.CFG == g && at.Pipe == c.Stage(k) {
					members = append(members, r)
				}
			}
			for _, m := range course.micros {
				work := c.work(g, k, m)
				for i, l := range work.loads {
					rt := &s.Ranks[members[i]]
					compute := c.compute(l)
					rt.Compute += compute
					rt.Products += l.gemm / l.on.GEMM
					rt.Attention += l.attention / l.on.Attention
					rt.Other += l.bytes / l.on.Traffic
					rt.Exchange += max(0, work.seconds-compute)
					rt.Hidden += l.sent - l.exchange
				}
			}
			for _, r := range members {
				s.Ranks[r].Send += stand[g*course.lanes+k]
			}
		}
	}
	for r := range s.Ranks {
		rt := &s.Ranks[r]
		rt.Idle = max(0, s.Seconds-rt.Compute-rt.Exchange-rt.Send)
	}
}
