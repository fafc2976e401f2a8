// Package forecast predicts what a plan costs before a weight is read: seconds (time.go, simulate.go), bytes sent
// (bytes.go) and memory (memory.go) of every rank, and with them cuts stages (lanes.go) and finds the fastest plan that
// fits (planner.go). It knows plans, the shape of a model (models/dit's Spec) and the rates of devices (profile.go); it
// runs nothing, and knows no tensor, no rank at work and no exchange but its size.
//
// In order: workload.go says what is asked and who computes it, stage_costs.go what blocks cost, time.go the seconds of
// a micro-step, program.go the order of everything, network.go how long that takes, timeline.go draws it.
package forecast

import (
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Workload is what a request asks of the ranks, as far as time, bytes and memory depend on it: everything that is known
// before a weight is read.
type Workload struct {
	Spec *dit.Spec
	Y, X int // rows and columns of the latent
	// Batch is the number of pictures.
	Batch int
	// Text is the number of text tokens of each conditioning entry: in the joint sequence, or as keys of the
	// cross-attention.
	Text []int
	// Branches is the branch of each entry (positive 0, negative 1, ...); nil: every entry is a branch of its own.
	Branches []int
	// Device is what stages are balanced by: rates of one rank. The zero Device counts multiply-adds alone. It must be the
	// same wherever the same run is described, as it decides which blocks a stage has.
	Device Device
	// Evaluations is how often the sampler calls the network, all entries active each time.
	Evaluations int
}

// branch returns the branch of entry i.
func (w *Workload) branch(i int) int {
	if w.Branches == nil {
		return i
	}
	return w.Branches[i]
}

// jointText is the longest text that runs through the blocks.
func (w *Workload) jointText() int {
	n := 0
	if w.Spec.JointText() {
		for _, t := range w.Text {
			n = max(n, t)
		}
	}
	return n
}

// Sequence is the sequence of entry i: text in the joint sequence, image.
func (w *Workload) Sequence(i int) plan.Sequence {
	e := plan.Sequence{Image: w.Tokens()}
	if w.Spec.JointText() {
		e.Text = w.Text[i]
	}
	return e
}

// Tokens is the number of image tokens of one picture.
func (w *Workload) Tokens() int { return w.Spec.Tokens(w.Y, w.X).Tokens() }

// Outline is a workload on a plan: who computes what, in which order. It is made by NewOutline and not changed.
type Outline struct {
	Workload
	plan    plan.Plan
	mesh    plan.Mesh
	Patches []dit.Range // image tokens of each patch
	Lanes   []plan.Lane // blocks of each stop of a micro-step
	batch   []dit.Range // items of each data part
	cfgOf   []int       // cfg group of each entry
	stores  bool        // K/V stores in use although there is one stage
}

// NewOutline cuts a workload by a plan that has passed plan.Check.
func NewOutline(w Workload, p plan.Plan) *Outline {
	o := &Outline{Workload: w, plan: p, mesh: plan.Mesh{Plan: p}, batch: plan.Balanced(w.Batch, p.Data)}
	lt, li := w.jointText(), w.Tokens()
	o.Patches = []dit.Range{{End: li}}
	if p.Pipe > 1 {
		o.Patches = plan.PatchRanges(lt, li, p.Patches)
	}
	branches := make([]int, len(w.Text))
	for i := range branches {
		branches[i] = w.branch(i)
	}
	for i := range w.Text {
		o.cfgOf = append(o.cfgOf, plan.CFGGroup(branches, i, p.CFG))
	}
	o.Lanes = o.cutLanes()
	return o
}

// synchronous tells whether evaluation e runs the whole picture at once: warm-up, and always the first, which fills the
// K/V store. Evaluations that a cache leaves out depend on the picture and are not forecast.
func (o *Outline) synchronous(e int) bool {
	return len(o.Patches) == 1 || e < max(o.plan.Warmup, 1)
}

// micros lists the micro-steps in the order in which every rank runs them.
func (o *Outline) micros() []plan.Micro {
	var out []plan.Micro
	for e := range o.Evaluations {
		if o.synchronous(e) {
			out = append(out, plan.Micro{Evaluation: e, Whole: true})
			continue
		}
		for m := range o.Patches {
			out = append(out, plan.Micro{Evaluation: e, Patch: m})
		}
	}
	return out
}

// rows returns what each rank of a sequence computes of an entry in a micro-step, by its place in the sequence.
func (o *Outline) rows(m plan.Micro, entry int) []dit.Rows {
	p := plan.Part{Whole: m.Whole, Text: m.Patch == 0}
	if !m.Whole {
		p.Tokens = o.Patches[m.Patch]
	}
	return p.Rows(o.Sequence(entry), o.plan.Ring*o.plan.Ulysses)
}

// Stage returns the stage that lane k belongs to: folded pipelines come back on the stages that they went down on.
func (o *Outline) Stage(k int) int {
	if k < o.plan.Pipe {
		return k
	}
	return 2*o.plan.Pipe - 2 - k
}

// own calls f for every lane of the stage of c.
func (o *Outline) own(c plan.Coord, f func(k int)) {
	for k := range o.Lanes {
		if o.Stage(k) == c.Pipe {
			f(k)
		}
	}
}

// stored tells whether attention runs from K/V stores.
func (o *Outline) stored() bool { return o.plan.Pipe > 1 || o.stores }

// heads is how many heads each Ulysses place of c's tensor place attends with.
func (o *Outline) heads(c plan.Coord) []dit.Range {
	local := dit.Held{Rank: c.Tensor, Ranks: o.plan.Tensor}.Share(o.Spec.Heads).Len()
	return plan.Balanced(local, o.plan.Ulysses)
}

// gathered counts the rows of an attention that the Ulysses group at ring place r brings.
func (o *Outline) gathered(rows []dit.Rows, r int, imageOnly bool) int {
	n := 0
	for _, row := range rows[r*o.plan.Ulysses : (r+1)*o.plan.Ulysses] {
		n += attended(row, imageOnly)
	}
	return n
}

// attended counts the rows that take part in an attention.
func attended(r dit.Rows, imageOnly bool) int {
	if imageOnly {
		return r.Image.Len()
	}
	return r.Len()
}

// cutLanes cuts the blocks over the lanes of a plan by what they cost.
func (o *Outline) cutLanes() []plan.Lane {
	n, lanes := len(o.Spec.Blocks), o.plan.Stops(plan.Skips(o.Spec))
	if lanes == 1 {
		return plan.WholeLanes([]dit.Range{{End: n}})
	}
	if o.plan.Owns() {
		return OwnLanes(o.Spec, o.plan, o.Device)
	}
	costs, ends := o.blockSeconds()
	return plan.Cut(o.Spec, costs, ends, o.plan.Pipe)
}
