package forecast

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"

	"patchbay/fault"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

// Search is a question to the planner: which plan runs this workload fastest on these devices?
type Search struct {
	Workload
	Cluster hardware.Cluster
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
	// HostMemory is how many bytes of host memory weights may take from where blocks are brought (stream=on); 0: plans
	// keep all weights on the devices.
	HostMemory int64
	// Apart says that every rank has a process of its own: ranks of one host do not share what is in host memory.
	Apart bool
	// Shared is how many bytes all ranks may take together that work in the memory of one process, where they share
	// weights; 0: each has the memory of its device.
	Shared int64
}

// Candidate is one plan with its prediction.
type Candidate struct {
	Plan    plan.Plan
	Seconds float64          // of the run; a lower bound for a plan that was not worth simulating
	Bound   bool             // Seconds is that lower bound
	Memory  Memory           // of the rank that needs most; where devices differ, of the one with the least room left
	Least   bool             // Memory is a lower bound, and Fits is about that: the plan is too slow to record
	On      *hardware.Device // of that rank
	Host    int64            // bytes of host memory from where blocks are brought
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
	// Streams is what the ranks of the best plan bring from host memory; the zero Streams: nothing.
	Streams Streams
	// Traffic is what the ranks of the best plan send in the run.
	Traffic [][]Traffic
}

// Choose finds the fastest plan that fits. More devices never make the answer slower, because every plan of fewer ranks
// is a candidate too. The error, a *fault.Error, says how much memory is missing and how many devices would be
// enough.
func (s Search) Choose() (*Choice, error) {
	s.Device = s.Cluster.Device
	fit, not, err := s.ranked()
	if err != nil {
		return nil, err
	}
	if len(fit) == 0 {
		return nil, s.refuse(not)
	}
	out := s.answer(fit[0])
	out.Others = append(fit[1:], not...)
	for _, c := range fit {
		if c.Plan.Ranks() > 1 {
			continue
		}
		if c, err = s.Weigh(c.Plan); err == nil && c.Fits {
			out.OneRank = s.Simulate(c.Plan).Seconds // c.Seconds may be a bound
		}
	}
	return out, err
}

// answer returns the Choice of one plan, without Others and OneRank.
func (s Search) answer(c Candidate) *Choice {
	sim := s.Simulate(c.Plan)
	c.Seconds = sim.Seconds
	out := &Choice{
		Best: c, Simulation: sim, Idle: s.Cluster.Ranks() - c.Plan.Ranks(),
		Traffic: TrafficByRank(s.Workload, c.Plan, s.Cluster.Device.WeightBytes, s.Cluster.Device.ValueBytes),
	}
	out.Streams = s.streams(out)
	return out
}

// ranked predicts the time of every plan, and the memory of those that could be the fastest: the others have bounds.
// It returns the plans that fit, fastest first, and the others, smallest first. Errors are those of Weigh.
func (s Search) ranked() (fit, not []Candidate, err error) {
	var queue []timed
	var add func(t timed)
	reject := func(c Candidate) {
		not = append(not, c)
		for _, p := range s.lastResort(c) {
			add(s.bounded(p))
		}
	}
	add = func(t timed) {
		if t.Fits {
			queue = append(queue, t)
		} else {
			reject(t.Candidate)
		}
	}
	byBound := func() {
		slices.SortStableFunc(queue, func(a, b timed) int { return cmp.Compare(a.Seconds, b.Seconds) })
	}
	plans := s.plans(s.Cluster.Ranks())
	all, next, g := make([]timed, len(plans)), atomic.Int64{}, scope.New(nil)
	for range runtime.GOMAXPROCS(0) {
		g.Go("bounds of plans", func() error {
			for i := next.Add(1) - 1; i < int64(len(plans)); i = next.Add(1) - 1 {
				all[i] = s.bounded(plans[i])
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for _, t := range all {
		add(t)
	}
	byBound()
	best := Candidate{Seconds: math.Inf(1)}
	for len(queue) > 0 && queue[0].Seconds <= 1.5*best.Seconds {
		c := queue[0].Candidate
		c.Seconds, c.Bound = simulate(queue[0].costs, true).Seconds+queue[0].beside, false
		queue = queue[1:]
		if faster(c, best) >= 0 {
			fit = append(fit, c)
			continue
		}
		weighed, err := s.Weigh(c.Plan)
		if err != nil {
			return nil, nil, err
		}
		weighed.Seconds = c.Seconds
		if !weighed.Fits {
			reject(weighed)
			byBound()
			continue
		}
		best, fit = weighed, append(fit, weighed)
	}
	for _, t := range queue {
		fit = append(fit, t.Candidate)
	}
	slices.SortStableFunc(fit, faster)
	slices.SortStableFunc(not, func(a, b Candidate) int { return cmp.Compare(a.Memory.Total(), b.Memory.Total()) })
	return fit, not, nil
}

// faster compares candidates by time, then by ranks.
func faster(a, b Candidate) int {
	return cmp.Or(cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.Plan.Ranks(), b.Plan.Ranks()))
}

// timed is a candidate with a bound of its time, and what it takes to simulate it.
type timed struct {
	Candidate
	costs  *costs
	beside float64 // seconds of nets
}

// bounded returns a plan with a bound of its memory and, if that fits, of its time.
func (s Search) bounded(p plan.Plan) (t timed) {
	o := NewPartition(s.Workload, p)
	if t.Candidate = s.least(o); t.Fits {
		t.costs, t.beside = newCosts(o, s.Cluster), s.netSeconds(p)
		t.Seconds, t.Bound = t.costs.bound()+t.beside, true
	}
	return t
}

// Fastest returns the fastest plan that fits; ok is false if none does, or if their memory cannot be predicted.
func (s Search) Fastest() (best Candidate, ok bool) {
	s.Device = s.Cluster.Device
	fit, _, err := s.ranked()
	if err != nil || len(fit) == 0 {
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
	p, err := s.Streamed(Share(s.Cluster, s.Spec, p))
	if err != nil {
		return nil, err
	}
	if err := s.Fits(p); err != nil {
		return nil, err
	}
	c, err := s.Weigh(p)
	if err != nil {
		return nil, err
	}
	return s.answer(c), nil
}

// Fits refuses a plan that takes more memory than its devices have. The error says what takes the memory and names a
// plan that fits, if there is one. The plan must be able to run.
func (s Search) Fits(p plan.Plan) error {
	c, err := s.Weigh(p)
	if err != nil || c.Fits {
		return err
	}
	m := c.Memory
	text := fmt.Sprintf("%s needs %s a rank (weights %s, kept keys and values %s, activations, exchanges and workspaces "+
		"%s)", p, Gigabytes(m.Total()), Gigabytes(m.Weights), Gigabytes(m.KV), Gigabytes(m.Total()-m.Weights-m.KV))
	text += s.free(c)
	if best, ok := s.Fastest(); ok {
		text += fmt.Sprintf(": use %s (%s)", best.Plan, Gigabytes(best.Memory.Total()))
	}
	return fault.Named(fault.OutOfMemory, "plan", "%s", text)
}

// Memory returns what every rank of a plan takes on the devices of the search, with nets and workspaces.
func (s Search) Memory(p plan.Plan) ([]Memory, error) {
	out, err := MemoryByRank(s.Workload, p, s.Cluster.Device.WeightBytes, s.Cluster.Device.ValueBytes)
	if err != nil {
		return nil, err
	}
	return s.withNets(out, p), nil
}

// withNets adds nets and workspaces to the memory of all ranks.
func (s Search) withNets(out []Memory, p plan.Plan) []Memory {
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
	text := fmt.Sprintf("nothing fits %s: the least, %s, needs %s a rank (weights %s)", s.Cluster, least.Plan,
		Gigabytes(least.Memory.Total()), Gigabytes(least.Memory.Weights)) + s.free(least)
	if more := s; !more.unlimited() && s.HostMemory < math.MaxInt64 {
		more.HostMemory = math.MaxInt64
		if best, ok := more.Fastest(); ok {
			text += fmt.Sprintf("; with %s of host memory %s would do, %s are allowed (--host-memory)", Gigabytes(best.Host),
				best.Plan, Gigabytes(s.HostMemory))
		}
	}
	for n := 2 * s.Cluster.Ranks(); n <= plan.MaxRanks && s.Cluster.Mixed == nil; n *= 2 {
		for _, p := range s.plans(n) {
			if p.Ranks() < n {
				continue
			}
			for _, p := range append(s.lastResort(s.least(NewPartition(s.Workload, p))), p) {
				if !s.least(NewPartition(s.Workload, p)).Fits {
					continue
				}
				if c, err := s.Weigh(p); err == nil && c.Fits {
					return fault.Named(fault.OutOfMemory, "devices", "%s; %d devices would do: %s needs %s", text, n, p,
						Gigabytes(c.Memory.Total()))
				}
			}
		}
	}
	return fault.Named(fault.OutOfMemory, "devices", "%s", text)
}

// free says what a plan that does not fit may take, and what it takes of host memory.
func (s Search) free(c Candidate) string {
	text := fmt.Sprintf(", %s are free on %s", Gigabytes(c.On.Free()), c.On.Name)
	if s.Shared > 0 {
		text = fmt.Sprintf(", all ranks together may take %s", Gigabytes(s.Shared))
	}
	if c.Host == 0 {
		return text
	}
	text += fmt.Sprintf("; blocks that come from host memory take %s there", Gigabytes(c.Host))
	if s.HostMemory > 0 && s.HostMemory < math.MaxInt64 {
		text += fmt.Sprintf(", %s are allowed", Gigabytes(s.HostMemory))
		if c.Host > s.HostMemory {
			text += " (serve --pack-cache DIR keeps them in files)"
		}
	}
	return text
}

// Gigabytes formats bytes for people.
func Gigabytes(n int64) string {
	if n < 1e8 {
		return fmt.Sprintf("%.2f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/1e9)
}

// lastResort returns what to try where a plan does not fit. Sharding is never faster, so it comes only there, as do
// blocks from host memory; then keys and values in 8 bits, with sharding where that is possible.
func (s Search) lastResort(c Candidate) (out []plan.Plan) {
	p := c.Plan
	sharded := p
	sharded.Shard = true
	can := sharded.Possible() == nil && (len(s.Nets) == 0 || sharded.Parts() == 1)
	switch {
	case p.KV8 || p.Stream > 0:
	case !p.Shard && can:
		out = append(out, sharded)
	case !s.Exact && p.Patches > 1:
		full := p
		full.KV8 = true
		if full.Possible() != nil {
			full.Shard = false
		}
		out = append(out, full)
	}
	if streaming, ok := s.streaming(c); ok {
		out = append(out, streaming)
	}
	return out
}

// least bounds the memory of a plan from below.
func (s Search) least(o *Partition) Candidate {
	list := make([]Memory, o.plan.Ranks())
	for r := range list {
		c := o.mesh.At(r)
		if first := (plan.Coord{Pipe: c.Pipe, Tensor: c.Tensor}); c != first && s.Cluster.Mixed == nil {
			list[r] = list[o.mesh.Rank(first)] // a bound for one rank is one for all
			continue
		}
		list[r] = o.leastMemory(c, s.Cluster.Device.WeightBytes, s.Cluster.Device.ValueBytes)
	}
	c := s.candidate(o.plan, s.withNets(list, o.plan))
	c.Least = true
	return c
}

// Weigh predicts the memory of a plan. Errors are those of MemoryByRank.
func (s Search) Weigh(p plan.Plan) (Candidate, error) {
	list, err := s.Memory(p)
	if err != nil {
		return Candidate{}, err
	}
	return s.candidate(p, list), nil
}

func (s Search) candidate(p plan.Plan, ranks []Memory) Candidate {
	c := Candidate{Plan: p, Exact: p.Pipe == 1 || p.Patches == 1 || p.Warmup >= s.Evaluations}
	room := func(m Memory, on *hardware.Device) int64 { return on.Free() - m.Total() }
	c.Fits = true
	for r, m := range ranks {
		on := s.Cluster.On(r)
		if r == 0 || room(m, on) < room(c.Memory, c.On) {
			c.Memory, c.On = m, on
		}
		c.Fits = c.Fits && (on.Free() == 0 || m.Total() <= on.Free())
	}
	if s.Shared > 0 {
		c.Fits = s.together(p, ranks) <= s.Shared
	}
	if c.Host = s.hostBytes(p); s.HostMemory > 0 {
		c.Fits = c.Fits && c.Host <= s.HostMemory
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
	for _, p := range list { // a ring of stages gathers in any case
		if p.Gather = p.Ring > 1; p.Gathers() {
			list = append(list, p)
		}
	}
	list = each(n, func(p *plan.Plan) *int { return &p.Ulysses }, list)
	list = each(n, func(p *plan.Plan) *int { return &p.Tensor }, list)
	for _, p := range list { // tensor groups are tried in both forms
		if p.Tensor > 1 {
			p.Scatter = true
			list = append(list, p)
		}
	}
	var rates []float64 // of ranks, where devices differ
	if s.Cluster.Mixed != nil {
		rates = speeds(s.Cluster, s.Spec)
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
					q := p
					if rates != nil {
						q.Speeds = plan.SpeedsOf(rates[:p.Ranks()])
					}
					out = append(out, q)
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

// bound returns a time that no schedule of the plan can beat: the busiest device has to run all its micro-steps.
func (c *costs) bound() float64 {
	most := 0.0
	for g := range c.plan.Data * c.plan.CFG {
		at := plan.Coord{Data: g / c.plan.CFG, CFG: g % c.plan.CFG}
		if c.twin(at) != at && c.cluster.Mixed == nil {
			continue
		}
		stage, whole, through := make([]float64, c.plan.Pipe), c.whole(), 0.0
		for k := range c.Lanes {
			lane := func(m plan.Micro) float64 { return c.leastSeconds(at, k, m) }
			if k == 0 || c.spread == nil { // one stage works at a time, or all together
				through += float64(whole) * lane(plan.Micro{Whole: true})
			}
			if whole == c.Evaluations {
				continue
			}
			first := lane(plan.Micro{Patch: 0})
			rest := 0.0
			if len(c.Patches) > 1 {
				last := len(c.Patches) - 1
				least := min(lane(plan.Micro{Patch: last}), lane(plan.Micro{Patch: max(1, last-1)}))
				rest = float64(last) * least
			}
			stage[c.Stage(k)] += float64(c.Evaluations-whole) * (first + rest)
		}
		most = max(most, through+slices.Max(stage))
	}
	return most * (1 - 1e-9)
}

// leastSeconds bounds the time of lane k in a micro-step from below: that of the first and the last rank of the
// sequence.
func (c *costs) leastSeconds(at plan.Coord, k int, m plan.Micro) (most float64) {
	if m.Whole && c.spread != nil {
		c, k = c.spread, 0
	}
	for _, r := range []int{0, c.plan.Ring*c.plan.Ulysses - 1} {
		at.Ring, at.Ulysses, at.Pipe = r/c.plan.Ulysses, r%c.plan.Ulysses, c.Stage(k)
		l := c.laneLoad(at, k, m)
		most = max(most, c.compute(l)+l.exchange)
	}
	return most
}
