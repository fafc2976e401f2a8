package forecast

import (
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Net is a control net that runs beside the model in every evaluation, or a model patch.
type Net struct {
	Patch   bool // a model patch: layers after every block of the model, whole on every rank
	Key     string
	Spec    *dit.Spec // with the blocks of the net
	Bytes   int64     // of its weights
	Hint    int       // hint values per image token
	Each    bool      // every image of the batch has its own hint
	Entries []int     // entries of the workload that use it, listed once per use
	Types   []int     // rows in front of the text that encode a control type, by Entries; nil: none
	Feeds   [][]int   // by block of the net, the blocks of the model after which it is added; nil: any
}

// beside returns a net as a workload of its own, and the plan by which ranks compute it (plan.Plan.ForNets).
func (w *Workload) beside(n *Net, p plan.Plan) (Workload, plan.Plan) {
	own := Workload{
		Spec: n.Spec, Y: w.Y, X: w.X, Batch: w.Batch, Device: w.Device, Evaluations: w.Evaluations,
		Unlike: true, // entries with nets are evaluated one by one
	}
	branches := w.branches()
	for k, i := range n.Entries {
		own.Text = append(own.Text, w.Text[i]+valueOf(n.Types, k))
		own.Branches = append(own.Branches, branches[i])
	}
	p = p.ForNets()
	p.Shard, p.KV8 = false, false
	return own, p
}

// besideOf returns the partition of a net on the ranks of a model: every rank computes its blocks on the rows that it
// has of the model, in a pipeline on the whole image.
func (o *Partition) besideOf(n *Net) *Partition {
	w, p := o.beside(n, o.plan)
	own := NewPartition(w, p)
	own.net, own.shiftOnly = n, o.shiftOnly && !own.bare // it begins like the model
	own.entries = make([][]int, len(o.entries))          // grouped like those of the model
	for k, entry := range n.Entries {
		g := slices.IndexFunc(o.entries, func(group []int) bool { return slices.Contains(group, entry) })
		own.entries[g] = append(own.entries[g], k)
		base := plan.Part{Whole: true}.Rows(o.Sequence(entry), p.Places(false))
		for at := range own.cut[0][k] {
			image, li := &own.cut[0][k][at].Image, own.Tokens()
			image.Start, image.End = min(base[at].Image.Start, li), min(base[at].Image.End, li)
		}
	}
	return own
}

// at returns the coordinates of the model's rank c in the partition of a net.
func (o *Partition) at(c plan.Coord) plan.Coord {
	c.Pipe, c.Ring, c.Ulysses, c.Tensor = 0, min(c.Ring, o.plan.Ring-1), min(c.Ulysses, o.plan.Ulysses-1), min(c.Tensor,
		o.plan.Tensor-1)
	return c
}

// sessionNets adds the sessions of patches, then of nets, to that of lane k. It returns the bytes of the rows of nets
// that follow the model, which stay allocated below the scratch of the model's blocks. The scratch of their own blocks
// is never larger, since these are like the model's, on some of its rows.
func (o *Partition) sessionNets(s *stack, c plan.Coord, k int) (rows int64) {
	for i := range o.Nets {
		if n := &o.Nets[i]; n.Patch {
			o.sessionPatch(s, n, c)
		}
	}
	for _, own := range o.nets {
		n, at, b := own.net, own.at(c), own.batch[c.Data].Len()
		width := n.Spec.Width
		mine := own.entries[c.CFG]
		for _, i := range mine {
			if n.Spec.Follows {
				own.hints(s, b)
				continue
			}
			own.sessionEntry(s, at, 0, i, b)
		}
		for blk := 0; blk < len(n.Spec.Blocks) && !n.Spec.Follows; blk++ {
			for _, i := range mine {
				own.sessionBlock(s, at, blk, i)
			}
		}
		for _, i := range mine {
			said := b * own.rows(plan.Micro{Whole: true}, i)[at.SequenceRank(own.plan)].Image.Len() * width
			s.f32(width)
			if n.Spec.Follows { // all outputs share one buffer
				s.alloc(said)
				state := stack{value: s.value}
				state.alloc(said)
				rows += state.top
				continue
			}
			for blk := range n.Spec.Blocks {
				if n.Feeds == nil || o.plan.Spread || slices.ContainsFunc(n.Feeds[blk], o.Lanes[k].Has) {
					s.alloc(said)
				}
			}
		}
	}
	return rows
}

// hints adds what a net keeps of the hints of an entry, and the peak while it is computed.
func (o *Partition) hints(s *stack, b int) {
	rows, spec := o.Tokens(), o.net.Spec
	if o.net.Each {
		rows *= b
	}
	s.alloc(rows * spec.Width)
	token := spec.PatchSize * spec.PatchSize
	if spec.Follows { // as an image and as tokens
		s.f32Scratch(rows*o.net.Hint, rows*o.net.Hint, s.projected(rows*spec.Width))
		return
	}
	mark := s.top
	s.f32(rows * (o.net.Hint + spec.HintZeros*token))
	s.f32Scratch(s.projected(rows * spec.Width))
	if spec.HintTwice {
		s.alloc(rows * spec.Width)
	}
	s.top = mark
}

// addNets adds the weights of nets to those of all ranks. A tensor group splits a net; of a net that follows the model,
// only the projections of attention and MLP.
func (s *Search) addNets(all []Memory, p plan.Plan) {
	for i := range s.Nets {
		n, share := &s.Nets[i], 1.
		switch {
		case n.Spec.Follows:
			w, own := s.beside(n, p)
			o := NewPartition(w, own)
			params := o.ends()
			for k := range n.Spec.Blocks {
				params += o.blockParams(k)
			}
			share = float64(params) / float64(max(n.Spec.Params, 1))
		case !n.Patch && p.Pipe == 1:
			share = 1 / float64(p.Tensor)
		}
		for r := range all {
			all[r].Weights += int64(float64(n.Bytes) * share)
		}
	}
}

// netSeconds returns the time of nets in a run. Ranks compute them before the blocks of an evaluation, in a pipeline
// all ranks at the same time.
func (s *Search) netSeconds(p plan.Plan) (sum float64) {
	for i := range s.Nets {
		n := &s.Nets[i]
		if n.Patch {
			sum += s.patchSeconds(n, p)
			continue
		}
		sum += newCosts(NewPartition(s.beside(n, p)), s.Cluster).bound()
		// the output layers of its blocks
		rows := p.Items(s.Batch)[0].Len() * s.Tokens() / (p.Ulysses * p.Ring)
		products := float64(s.patched(n, p) * len(n.Spec.Blocks) * rows)
		sum += float64(max(s.Evaluations, 1)) * 2 * products * float64(n.Spec.Width*n.Spec.Width) / s.Cluster.Device.GEMM
	}
	return sum
}

// simulate is Simulate with the time of nets included, except in Spans.
func (s *Search) simulate(p plan.Plan) *Simulation {
	sim := Simulate(s.Workload, p, s.Cluster)
	n, sum, o := max(s.Evaluations, 1), s.netSeconds(p), NewPartition(s.Workload, p)
	whole := 0
	for whole < n && o.synchronous(whole) {
		whole++
	}
	sim.Seconds, sim.StepSeconds = sim.Seconds+sum, sim.StepSeconds+sum/float64(n)
	sim.WarmupSeconds += sum * (float64(whole) / float64(n))
	for r := range sim.Ranks {
		sim.Ranks[r].Compute += sum
	}
	return sim
}

// sessionPatch adds the session of a patch: for each entry the embedded hint of the whole image, which is read in f32.
// The activations of a patch are smaller than those of the block before it, which have been released.
func (o *Partition) sessionPatch(s *stack, n *Net, c plan.Coord) {
	for _, i := range n.Entries {
		if !slices.Contains(o.entries[c.CFG], i) {
			continue
		}
		s.alloc(o.Tokens() * n.Spec.Width)
		s.f32Scratch(o.Tokens()*n.Hint, s.projected(o.Tokens()*n.Spec.Width))
		s.f32(n.Spec.Width)
	}
}

// patched returns how many entries have net n in the cfg group that has most of them.
func (s *Search) patched(n *Net, p plan.Plan) int {
	groups, branches := make([]int, p.CFG), s.branches()
	for _, i := range n.Entries {
		groups[plan.CFGCoord(branches, i, p.CFG)]++
	}
	return slices.Max(groups)
}

// patchPasses is how often a patch reads or writes its rows after a block for element-wise work: norms 3, their sum 3,
// the rows that it changes 2.
const patchPasses = 8

// patchSeconds returns the time of a patch in a run. Ranks of a tensor group compute the same rows unless they split
// them; stages run it after their own blocks only.
func (s *Search) patchSeconds(n *Net, p plan.Plan) float64 {
	d := s.Cluster.Device
	share := p.Ulysses * p.Ring * p.Pipe
	if p.Scatter {
		share *= p.Tensor
	}
	entries := float64(s.patched(n, p))
	rows := float64(p.Items(s.Batch)[0].Len()*s.Tokens()) / float64(share)
	one := 2*rows*float64(n.Spec.Params)/d.GEMM +
		rows*float64(len(n.Spec.Blocks)*n.Spec.Width*d.ValueBytes*patchPasses)/d.Traffic
	return float64(max(s.Evaluations, 1)) * entries * one
}
