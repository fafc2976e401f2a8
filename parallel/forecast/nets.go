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
	beside := Workload{
		Spec: n.Spec, Y: w.Y, X: w.X, Batch: w.Batch, Device: w.Device, Evaluations: w.Evaluations,
		Unlike: true, // entries with nets are evaluated one by one
		net:    n, base: w.Spec,
	}
	branches := w.branches()
	for k, i := range n.Entries {
		beside.Text = append(beside.Text, w.Text[i]+valueOf(n.Types, k))
		beside.Branches = append(beside.Branches, branches[i])
	}
	p = p.ForNets()
	p.Shard, p.KV8, p.Stream = false, false, 0
	return beside, p
}

// addNets adds the weights of nets to those of all ranks.
func (s *Search) addNets(all []Memory, p plan.Plan) {
	for i := range s.Nets {
		n, mesh, part, whole := &s.Nets[i], plan.Mesh{Plan: p}, int64(1), int64(1)
		if !n.Patch && p.Pipe == 1 {
			whole = int64(p.Tensor)
		}
		o := NewPartition(s.beside(n, p))
		for r := range all {
			if n.Spec.Follows {
				part, _ = o.heldParams(plan.Coord{Tensor: mesh.At(r).Tensor})
				whole = max(n.Spec.Params, 1)
			}
			all[r].Weights += int64(float64(n.Bytes) * float64(part) / float64(whole))
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

// Simulate predicts a run without tensors. It follows the order of the executor (schedule.go) with the times of
// time.go. Spans leave out the time of nets, all else includes it. The plan must have passed Check.
func (s Search) Simulate(p plan.Plan) *Simulation {
	s.Device = s.Cluster.Device
	o := NewPartition(s.Workload, p)
	sim := simulate(newCosts(o, s.Cluster), false)
	n, sum := max(s.Evaluations, 1), s.netSeconds(p)
	sim.Seconds, sim.StepSeconds = sim.Seconds+sum, sim.StepSeconds+sum/float64(n)
	sim.WarmupSeconds += sum * (float64(o.whole()) / float64(n))
	for r := range sim.Ranks {
		sim.Ranks[r].Compute += sum
	}
	return sim
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
