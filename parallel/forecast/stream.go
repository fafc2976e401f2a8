package forecast

import (
	"fmt"
	"slices"
	"sort"

	"patchbay/parallel/plan"
)

// Blocks from host memory (stream=on): how many, and what that takes there.

// Streams says what a plan brings from host memory.
type Streams struct {
	Blocks    int     // that the rank which brings most brings in every evaluation; 0: none
	Resident  int     // blocks that it keeps
	StepBytes int64   // that it brings in the mean evaluation
	HostBytes int64   // of host memory, from where all ranks bring them
	Slowdown  float64 // the run takes so many times as long as if all blocks stayed on the devices
}

// streams returns what the best plan of a choice brings.
func (s Search) streams(c *Choice) (out Streams) {
	p := c.Best.Plan
	if !p.Streams() {
		return out
	}
	o := NewPartition(s.Workload, p)
	for r := range p.Ranks() {
		held, blocks, brought := p.Held(o.Lanes, o.mesh.At(r)), 0, 0
		for n, streamed := range held.Streamed(len(s.Spec.Blocks)) {
			if held.Has(n) {
				blocks++
			}
			if streamed {
				brought++
			}
		}
		if brought > out.Blocks {
			out.Blocks, out.Resident = brought, blocks-brought
		}
		out.StepBytes = max(out.StepBytes, c.Traffic[r][plan.AxisStream].Bytes/int64(s.Evaluations))
	}
	if p.Stream = 0; p.Pipe > 1 {
		p.Shard = true // stages are cut in the same way
	}
	out.HostBytes, out.Slowdown = c.Best.Host, c.Simulation.Seconds/s.Simulate(p).Seconds
	return out
}

// Auto predicts one rank with as few blocks from host memory as necessary.
func (s Search) Auto() (*Choice, error) {
	p := plan.OneRank()
	p.Stream = plan.StreamAuto
	return s.Predict(p)
}

// Streamed returns p with the number of blocks that come from host memory, if that is still to be chosen: as few as
// necessary. Where memory has no limit, stream=on means all.
func (s Search) Streamed(p plan.Plan) (plan.Plan, error) {
	if p.Stream >= 0 {
		return p, nil
	}
	s.Device = s.Cluster.Device
	if p.Stream == plan.StreamAuto {
		on := p
		on.Stream, p.Stream = plan.StreamOn, 0
		if s.unlimited() || s.Spec.Whole || on.Possible() != nil {
			return p, nil
		}
		if c, err := s.Weigh(p); err != nil || c.Fits {
			return p, nil // opening the session says what is wrong
		}
		p = on
	}
	list, err := s.Memory(p)
	if err != nil {
		return p, err
	}
	return s.fewest(p, list), nil
}

// Room returns what weights and sessions on the processors may take of a process's memory.
func Room(memory int64) int64 { return memory - memory/8 }

// unlimited reports whether ranks may take any memory.
func (s Search) unlimited() bool { return s.Shared == 0 && s.Cluster.Device.Free() == 0 }

// streaming returns a plan that does not fit, with as few blocks from host memory as necessary; ok is false if it may
// not have any or would not fit either. Where the plan was refused by a bound of its memory, so is the new one.
func (s Search) streaming(c Candidate) (p plan.Plan, ok bool) {
	p = c.Plan
	if p.Stream = plan.StreamOn; s.HostMemory == 0 || s.Spec.Whole || p.Possible() != nil || c.Least && c.Plan.Stream > 0 {
		return p, false
	}
	if c.Plan.Stream == 0 {
		o, list := NewPartition(s.Workload, p), make([]Memory, p.Ranks())
		for r := range list {
			list[r] = o.leastMemory(o.mesh.At(r), s.Cluster.Device.WeightBytes, s.Cluster.Device.ValueBytes)
		}
		p = s.fewest(p, s.withNets(list, p))
		return p, s.least(NewPartition(s.Workload, p)).Fits
	}
	p, err := s.Streamed(p)
	return p, err == nil && p.Stream > c.Plan.Stream
}

// fewest returns a plan with stream=on with the number of blocks that makes it fit, an even one, so that neighbors have
// different slots at the end of a step too, or all. ranks is what the ranks need, whatever the number.
func (s Search) fewest(p plan.Plan, ranks []Memory) plan.Plan {
	all := 0
	for _, lane := range NewPartition(s.Workload, p).Lanes {
		all = max(all, lane.Len())
	}
	if p.Stream = all; s.unlimited() {
		return p
	}
	s.HostMemory = 0                           // fewer blocks take less of it
	n := sort.Search(all/2, func(i int) bool { // more blocks from host memory never take more on the device
		q := p
		q.Stream = 2 * (i + 1)
		return s.candidate(q, s.reweighed(q, ranks)).Fits
	})
	if n < all/2 {
		p.Stream = 2 * (n + 1)
	}
	return p
}

// reweighed returns the memory of ranks with the weights of a plan that differs in the number of blocks that it brings.
func (s Search) reweighed(p plan.Plan, ranks []Memory) []Memory {
	o, out := NewPartition(s.Workload, p), slices.Clone(ranks)
	for r := range out {
		least := o.leastMemory(o.mesh.At(r), s.Cluster.Device.WeightBytes, s.Cluster.Device.ValueBytes)
		out[r].Weights, out[r].Slots = least.Weights, least.Slots
	}
	s.addNets(out, p)
	return out
}

// hostBytes returns how many bytes of host memory the ranks of a plan bring blocks from. What several ranks of one
// process hold counts once.
func (s Search) hostBytes(p plan.Plan) (bytes int64) {
	if !p.Streams() {
		return 0
	}
	o, copied := NewPartition(s.Workload, p), map[string]bool{}
	for r := range p.Ranks() {
		process := r
		if !s.Apart {
			process = s.Cluster.HostOf(r)
		}
		key := plan.HeldKey(fmt.Sprint(process), p.Held(o.Lanes, o.mesh.At(r)))
		if copied[key] {
			continue
		}
		copied[key] = true
		bytes += int64(float64(o.streamedParams(o.mesh.At(r))) * s.Cluster.Device.WeightBytes)
	}
	return bytes
}

// together returns how many bytes ranks take that share the memory of a process: weights that several of them hold
// count once.
func (s Search) together(p plan.Plan, ranks []Memory) (bytes int64) {
	o, held := NewPartition(s.Workload, p), map[string]bool{}
	for r, m := range ranks {
		bytes += m.Total()
		key := plan.HeldKey("", p.Held(o.Lanes, o.mesh.At(r)))
		if held[key] {
			bytes -= m.Weights - m.Slots
		}
		held[key] = true
	}
	return bytes
}
