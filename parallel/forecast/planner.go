package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/parallel/plan"
)

// Search is a question to the planner: which plan runs this workload fastest on these devices?
type Search struct {
	Workload
	Cluster Cluster
	// Exact leaves out plans whose images differ from one rank's: pipelines with stale keys and values.
	Exact bool
	// Flat leaves out pipelines, which entries limited to an area cannot use.
	Flat bool
	// Warmup is the number of synchronous evaluations of pipelines.
	Warmup int
	// Blocking makes plans in which every pipeline transfer keeps its stage from computing (overlap=off).
	Blocking bool
	// Deterministic makes plans whose images are bit-identical to one rank's.
	Deterministic bool
}

// Candidate is one plan with its prediction.
type Candidate struct {
	Plan    plan.Plan
	Seconds float64 // of the run; a lower bound for a plan that was not worth simulating
	Bound   bool    // Seconds is that lower bound
	Memory  Memory  // of the rank that needs most; where devices differ, of the one with the least room left
	On      *Device // of that rank
	Fits    bool
	Exact   bool // the image is that of one rank
}

// Choice is the planner's answer.
type Choice struct {
	Best       Candidate
	Simulation *Simulation
	// Others are all other plans, fastest first, with those that do not fit at the end.
	Others []Candidate
	// Idle is the number of devices that the best plan does not use.
	Idle int
	// OneRank is the predicted time on one device in seconds, 0 if the model does not fit one.
	OneRank float64
	// Traffic is what the ranks of the best plan send in the run.
	Traffic [][]Traffic
}

// Free returns how many bytes of a device a plan may take, 0: no limit is known.
func (d *Device) Free() int64 { return max(0, d.Memory-d.Reserved) }

// Choose finds the fastest plan that fits. More devices never make the answer slower, because every plan of fewer ranks
// is a candidate too. The error, a *fault.Error, says how much memory is missing and how many devices would be
// enough.
func (s Search) Choose() (*Choice, error) {
	s.Device = s.Cluster.Device
	fit, not := s.ranked()
	if len(fit) == 0 {
		return nil, s.refuse(not)
	}
	out := s.answer(fit[0])
	out.Others = append(fit[1:], not...)
	for _, c := range fit {
		if c.Plan.Ranks() == 1 { // its Seconds may be a bound
			out.OneRank = s.simulate(c.Plan).Seconds
		}
	}
	return out, nil
}

// answer returns the Choice of one plan, without Others and OneRank.
func (s Search) answer(c Candidate) *Choice {
	sim := s.simulate(c.Plan)
	c.Seconds = sim.Seconds
	return &Choice{
		Best: c, Simulation: sim, Idle: s.Cluster.Ranks() - c.Plan.Ranks(),
		Traffic: TrafficByRank(s.Workload, c.Plan, s.Cluster.Device.WeightBytes, s.Cluster.Device.ValueBytes),
	}
}

// ranked predicts memory and time of every plan. It returns those that fit, fastest first, and the others, smallest
// first.
func (s Search) ranked() (fit, not []Candidate) {
	for _, c := range s.candidates(s.Cluster.Ranks()) {
		if c.Fits {
			fit = append(fit, c)
		} else {
			not = append(not, c)
		}
	}
	s.time(fit)
	slices.SortStableFunc(fit, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.Plan.Ranks(), b.Plan.Ranks()))
	})
	slices.SortStableFunc(not, func(a, b Candidate) int { return cmp.Compare(a.Memory.Total(), b.Memory.Total()) })
	return fit, not
}

// Fastest returns the fastest plan that fits; ok is false if none does.
func (s Search) Fastest() (best Candidate, ok bool) {
	s.Device = s.Cluster.Device
	fit, _ := s.ranked()
	if len(fit) == 0 {
		return Candidate{}, false
	}
	return fit[0], true
}

// Predict returns the answer for a given plan. It refuses one that cannot run or does not fit and names an alternative.
func (s Search) Predict(p plan.Plan) (*Choice, error) {
	s.Device = s.Cluster.Device
	if err := p.Check(s.Spec, s.Batch, len(s.Text), s.Tokens()); err != nil {
		return nil, err
	}
	if n := s.Cluster.Ranks(); p.Ranks() > n {
		return nil, plan.Refuse("", "%s takes %d devices, %s has %d: leave the plan out to have one chosen", p,
			p.Ranks(), s.Cluster, n)
	}
	p = s.Cluster.Share(s.Spec, p)
	if err := s.Fits(p); err != nil {
		return nil, err
	}
	return s.answer(s.weigh(p)), nil
}

// Fits refuses a plan that takes more memory than its devices have. The error says what takes the memory and names a
// plan that fits, if there is one. The plan must be able to run.
func (s Search) Fits(p plan.Plan) error {
	c := s.weigh(p)
	if c.Fits {
		return nil
	}
	m := c.Memory
	text := fmt.Sprintf("%s needs %s a rank (weights %s, kept keys and values %s, activations, exchanges and workspaces "+
		"%s)", p, gigabytes(m.Total()), gigabytes(m.Weights), gigabytes(m.KV), gigabytes(m.Total()-m.Weights-m.KV))
	text += fmt.Sprintf(", %s are free on %s", gigabytes(c.On.Free()), c.On.Name)
	if best, ok := s.Fastest(); ok {
		text += fmt.Sprintf(": use %s (%s)", best.Plan, gigabytes(best.Memory.Total()))
	}
	return fault.Named(fault.OutOfMemory, "plan", "%s", text)
}

// Memory returns what every rank of a plan takes on the devices of the search, with nets and workspaces.
func (s Search) Memory(p plan.Plan) []Memory {
	out := MemoryByRank(s.Workload, p, s.Cluster.Device.WeightBytes, s.Cluster.Device.ValueBytes)
	for i := range out {
		out[i].Workspace = s.Cluster.On(i).Workspace
		if p.Pipe > 1 && plan.Skips(s.Spec) { // both lanes of a folded stage have one
			out[i].Workspace *= 2
		}
	}
	s.addNets(out, p)
	return out
}

// refuse says what is missing when nothing fits. The candidates are sorted by memory, least first.
func (s Search) refuse(not []Candidate) error {
	if len(not) == 0 {
		return fault.Named(fault.PlanRefused, "devices", "no plan is possible: the workload has no pictures or no entries")
	}
	least := not[0]
	text := fmt.Sprintf("nothing fits %s: the least, %s, needs %s a rank (weights %s), %s are free", s.Cluster, least.Plan,
		gigabytes(least.Memory.Total()),
		gigabytes(least.Memory.Weights), gigabytes(least.On.Free()))
	for n := 2 * s.Cluster.Ranks(); n <= plan.MaxRanks && s.Cluster.Mixed == nil; n *= 2 {
		for _, c := range s.candidates(n) {
			if c.Plan.Ranks() == n && c.Fits {
				return fault.Named(fault.OutOfMemory, "devices", "%s; %d devices would do: %s needs %s", text, n, c.Plan,
					gigabytes(c.Memory.Total()))
			}
		}
	}
	return fault.Named(fault.OutOfMemory, "devices", "%s", text)
}

// gigabytes formats bytes.
func gigabytes(n int64) string {
	if n < 1e8 {
		return fmt.Sprintf("%.2f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/1e9)
}

// candidates returns every plan of at most n ranks with its predicted memory.
func (s Search) candidates(n int) []Candidate {
	var out []Candidate
	speeds := s.Cluster.Speeds(s.Spec)
	for _, p := range s.plans(n) {
		p = s.Cluster.shared(p, speeds)
		c := s.weigh(p)
		out = append(out, c)
		// sharding is never faster, so it is tried only where whole weights do not fit
		if p.Shard = true; !c.Fits && p.Possible() == nil && (len(s.Nets) == 0 || p.Parts() == 1) {
			out = append(out, s.weigh(p))
		}
		// the last resort: keys and values in 8 bits; p has shard=on where that is possible
		if p.KV8 = !s.Exact && p.Patches > 1; p.KV8 && !out[len(out)-1].Fits {
			if p.Possible() != nil {
				p.Shard = false
			}
			out = append(out, s.weigh(p))
		}
	}
	return out
}

// weigh predicts the memory of a plan.
func (s Search) weigh(p plan.Plan) Candidate {
	c := Candidate{Plan: p, Exact: p.Pipe == 1 || p.Patches == 1 || p.Warmup >= s.Evaluations}
	room := func(m Memory, on *Device) int64 { return on.Free() - m.Total() }
	c.Fits = true
	for r, m := range s.Memory(p) {
		on := s.Cluster.On(r)
		if r == 0 || room(m, on) < room(c.Memory, c.On) {
			c.Memory, c.On = m, on
		}
		c.Fits = c.Fits && (on.Free() == 0 || m.Total() <= on.Free())
	}
	return c
}

// plans lists every plan of at most n ranks that can run the workload.
func (s Search) plans(n int) []plan.Plan {
	var out []plan.Plan
	one := plan.OneRank()
	one.Overlap, one.Deterministic = !s.Blocking, s.Deterministic
	each := func(limit int, at func(*plan.Plan) *int, list []plan.Plan) []plan.Plan {
		var next []plan.Plan
		for _, p := range list {
			for d := 1; d <= limit && p.Ranks()*d <= n; d++ {
				q := p
				*at(&q) = d
				next = append(next, q)
			}
		}
		return next
	}
	list := each(s.Batch, func(p *plan.Plan) *int { return &p.Data }, []plan.Plan{one})
	list = each(len(s.Text), func(p *plan.Plan) *int { return &p.CFG }, list)
	if !s.Flat && !slices.ContainsFunc(s.Nets, func(n Net) bool { return n.Spec.Follows }) {
		list = each(n, func(p *plan.Plan) *int { return &p.Pipe }, list)
	}
	list = each(n, func(p *plan.Plan) *int { return &p.Ring }, list)
	list = each(n, func(p *plan.Plan) *int { return &p.Ulysses }, list)
	list = each(n, func(p *plan.Plan) *int { return &p.Tensor }, list)
	for _, p := range list { // tensor groups are tried in both forms
		if p.Tensor > 1 {
			p.Scatter = true
			list = append(list, p)
		}
	}
	for _, p := range list {
		for _, p.Patches = range s.patchCounts(p.Pipe) {
			if p.Pipe > 1 {
				p.Warmup = s.Warmup
			}
			forms := []bool{false, true}
			if p.Patches == 1 {
				forms = forms[:1]
			}
			for _, p.Spread = range forms {
				if p.Check(s.Spec, s.Batch, len(s.Text), s.Tokens()) == nil {
					out = append(out, p)
				}
			}
			p.Spread = false
		}
	}
	return out
}

// patchCounts returns the numbers of patches to try for a number of stages: one (no stale values, for memory alone), as
// many as stages, and more, which cover the way back to the first stage.
func (s Search) patchCounts(stages int) []int {
	if stages == 1 {
		return []int{1}
	}
	out := []int{1}
	if s.Exact {
		return out
	}
	for _, n := range []int{stages, stages + 1, stages + 2, (3*stages + 1) / 2, 2 * stages, 3 * stages} {
		if n > 1 && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// time predicts the times of all candidates, lowest bound first. Once a bound exceeds 1.5 times the best time, the
// remaining candidates keep their bounds.
func (s Search) time(list []Candidate) {
	bounded := make([]*costs, len(list))
	order, beside := make([]int, len(list)), make([]float64, len(list))
	for i := range list {
		bounded[i] = newCosts(NewPartition(s.Workload, list[i].Plan), s.Cluster)
		beside[i] = s.netSeconds(list[i].Plan)
		list[i].Seconds, list[i].Bound, order[i] = bounded[i].bound()+beside[i], true, i
	}
	sortBy(order, func(i int) float64 { return list[i].Seconds })
	best := math.Inf(1)
	for _, i := range order {
		if list[i].Seconds > 1.5*best {
			break
		}
		list[i].Seconds, list[i].Bound = simulate(bounded[i], true).Seconds+beside[i], false
		best = min(best, list[i].Seconds)
	}
}

// bound returns a time that no schedule of the plan can beat: the busiest device has to run all its micro-steps.
func (c *costs) bound() float64 {
	most := 0.0
	for g := range c.plan.Data * c.plan.CFG {
		stage := make([]float64, c.plan.Pipe)
		warmup, through := 0, 0.0
		for e := 0; e < c.Evaluations && c.synchronous(e); e++ {
			warmup++
		}
		for k := range c.Lanes {
			lane := func(m plan.Micro) float64 { return c.work(g, k, m).seconds }
			if warmup > 0 && c.spread != nil { // all stages work together
				through = float64(warmup) * lane(plan.Micro{Whole: true})
			} else if warmup > 0 { // one stage works at a time
				through += float64(warmup) * lane(plan.Micro{Whole: true})
			}
			if warmup == c.Evaluations {
				continue
			}
			first := lane(plan.Micro{Patch: 0})
			rest := 0.0
			if len(c.Patches) > 1 {
				last := len(c.Patches) - 1
				least := min(lane(plan.Micro{Patch: last}), lane(plan.Micro{Patch: max(1, last-1)}))
				rest = float64(last) * least
			}
			stage[c.Stage(k)] += float64(c.Evaluations-warmup) * (first + rest)
		}
		most = max(most, through+slices.Max(stage))
	}
	return most * (1 - 1e-9)
}
