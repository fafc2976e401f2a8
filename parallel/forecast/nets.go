package forecast

import (
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Net is a control net that runs beside the model, in every evaluation, or a model patch.
type Net struct {
	Patch   bool // layers behind every block of the model, whole on every rank
	Key     string
	Spec    *dit.Spec // with the blocks of the net
	Bytes   int64     // of its weights
	Hint    int       // values of the hint for an image token
	Each    bool      // every picture has a hint of its own
	Entries []int     // of the workload that have it, more than once where it is on an entry twice
}

// beside is a net as a workload of its own and the plan that ranks compute it with (plan.Plan.Beside).
func (w *Workload) beside(n *Net, p plan.Plan) (Workload, plan.Plan) {
	own := Workload{
		Spec: n.Spec, Y: w.Y, X: w.X, Batch: w.Batch, Device: w.Device, Evaluations: w.Evaluations,
		Unlike: true, // entries with nets are evaluated one by one
	}
	for _, i := range n.Entries {
		branch := i
		if w.Branches != nil {
			branch = w.Branches[i]
		}
		own.Text, own.Branches = append(own.Text, w.Text[i]), append(own.Branches, branch)
	}
	p = p.Beside()
	p.Shard, p.ByWeights = false, false
	return own, p
}

// addNets adds the memory of nets to that of all ranks: their weights, sessions with hints and outputs, behind what
// stays of the model's, and activations, which lie above the rows of the model, where those of blocks lie later. All
// ranks get what one needs most. Sessions are those of whole models, an output is counted for every block.
func (s *Search) addNets(all []Memory, stays []int64, p plan.Plan) {
	d := s.Cluster.Device
	keep := func(r int, taken stack) {
		all[r].Session, stays[r] = max(all[r].Session, stays[r]+taken.peak), stays[r]+taken.top
	}
	for i := range s.Nets {
		n := &s.Nets[i]
		if n.Patch {
			taken := s.takenByPatch(n, p, d.ValueBytes)
			for r := range all {
				all[r].Weights += n.Bytes
				keep(r, taken)
			}
			continue
		}
		if n.Spec.Follows {
			s.addFollower(all, n, p, d.ValueBytes, keep)
			continue
		}
		w, own := s.beside(n, p)
		weights := n.Bytes
		if p.Pipe == 1 {
			weights /= int64(p.Tensor)
		}
		o, most := NewPartition(w, own), Memory{}
		for r, net := range MemoryByRank(w, own, 0, d.ValueBytes) {
			c := o.mesh.At(r)
			rows := stack{value: d.ValueBytes}
			taken := stack{value: d.ValueBytes, top: net.Session, peak: net.Session}
			for i := range w.Text {
				if o.cfgOf[i] != c.CFG {
					continue
				}
				own, b := o.rows(plan.Micro{Whole: true}, i)[c.SequenceRank(own)], o.batch[c.Data].Len()
				rows.alloc(b * own.Len() * n.Spec.Width)
				hints := w.Tokens()
				if n.Each {
					hints *= b
				}
				taken.alloc(hints * n.Spec.Width)
				mark := taken.top
				taken.f32(hints * n.Hint)
				taken.top = mark
				for range n.Spec.Blocks {
					taken.alloc(b * own.Image.Len() * n.Spec.Width)
				}
			}
			net.Session, net.Activations = taken.peak, net.Activations+rows.peak
			most.Session = max(most.Session, net.Session)
			most.Activations = max(most.Activations, net.Activations)
			most.Exchange = max(most.Exchange, net.Exchange)
		}
		for r := range all {
			m := &all[r]
			m.Weights += weights
			keep(r, stack{top: most.Session, peak: most.Session})
			m.Activations, m.Exchange = max(m.Activations, most.Activations), max(m.Exchange, most.Exchange)
		}
	}
}

// addFollower adds the memory of a net that follows the model: its weights, of which a tensor group shares the products
// of attention and MLP, hints of the whole picture, one output an entry, and its rows, which stay below the scratch of
// the model's blocks. That of its own is never more: blocks are like the model's, of some of its rows.
func (s *Search) addFollower(all []Memory, n *Net, p plan.Plan, value int, keep func(rank int, taken stack)) {
	w, own := s.beside(n, p)
	o, base := NewPartition(w, own), NewPartition(s.Workload, p)
	params := o.ends()
	for k := range n.Spec.Blocks {
		params += o.blockParams(k)
	}
	width, tokens := n.Spec.Width, w.Tokens()
	for r := range all {
		c, session, rows := o.mesh.At(r), stack{value: value}, stack{value: value}
		each := func(visit func(entry int)) {
			for i, entry := range n.Entries {
				if o.cfgOf[i] == c.CFG {
					visit(entry)
				}
			}
		}
		each(func(int) {
			session.alloc(tokens * width)
			session.f32Scratch(tokens*n.Hint, tokens*n.Hint, session.projected(tokens*width))
		})
		each(func(entry int) {
			image := base.rows(plan.Micro{Whole: true}, entry)[c.SequenceRank(p)].Image
			x := o.batch[c.Data].Len() * max(0, min(image.End, tokens)-image.Start) * width
			rows.alloc(x)
			session.f32(width)
			session.alloc(x)
		})
		m := &all[r]
		m.Weights += int64(float64(n.Bytes) * float64(params) / float64(max(n.Spec.Params, 1)))
		m.Activations += rows.top
		keep(r, session)
	}
}

// netSeconds is what nets take in a run: ranks compute them before the blocks of an evaluation, in a pipeline all of
// them at the same time.
func (s *Search) netSeconds(p plan.Plan) (sum float64) {
	for i := range s.Nets {
		if n := &s.Nets[i]; n.Patch {
			sum += s.patchSeconds(n, p)
			continue
		}
		sum += newCosts(NewPartition(s.beside(&s.Nets[i], p)), s.Cluster).bound()
		if n := &s.Nets[i]; n.Spec.Follows { // and what their blocks say
			rows := p.Items(s.Batch)[0].Len() * s.Tokens() / (p.Ulysses * p.Ring)
			products := float64(s.patched(n, p) * len(n.Spec.Blocks) * rows)
			sum += float64(max(s.Evaluations, 1)) * 2 * products * float64(n.Spec.Width*n.Spec.Width) / s.Cluster.Device.GEMM
		}
	}
	return sum
}

// simulate is Simulate with the time of nets in all times but those of Spans.
func (s *Search) simulate(p plan.Plan) (*Simulation, error) {
	sim, err := Simulate(s.Workload, p, s.Cluster)
	if err != nil {
		return nil, err
	}
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
	return sim, nil
}

// takenByPatch is the session of a patch: for each entry, the hint of the whole picture, which is read in f32. Its
// activations are fewer than those of the block before it, which have been given back.
func (s *Search) takenByPatch(n *Net, p plan.Plan, value int) stack {
	taken := stack{value: value}
	for range s.patched(n, p) {
		taken.alloc(s.Tokens() * n.Spec.Width)
		mark := taken.top
		taken.f32(s.Tokens() * n.Hint)
		if value < 4 {
			taken.f32(s.Tokens() * n.Spec.Width)
		}
		taken.top = mark
		taken.f32(n.Spec.Width)
	}
	return taken
}

// patched is how many entries have a patch in the cfg group that has most of them.
func (s *Search) patched(n *Net, p plan.Plan) int {
	groups, branches := make([]int, p.CFG), s.Branches
	for i := range s.Text {
		if s.Branches == nil {
			branches = append(branches, i)
		}
	}
	for _, i := range n.Entries {
		groups[plan.CFGGroup(branches, i, p.CFG)]++
	}
	return slices.Max(groups)
}

// patchPasses is how often a patch reads or writes its rows behind a block for element-wise work: norms 3, their sum 3,
// the rows it adds to 2.
const patchPasses = 8

// patchSeconds is what a patch takes in a run. Ranks of a tensor group compute the same rows unless they share them;
// stages have their own blocks.
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
