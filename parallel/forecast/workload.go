// Package forecast predicts what a plan costs before a weight is read: seconds (time.go, simulate.go), bytes sent
// (bytes.go) and memory (memory.go) of every rank, and with them cuts stages (lanes.go) and finds the fastest plan that
// fits (planner.go). It knows plans, the shape of a model (models/dit's Spec) and the rates of devices (cluster.go); it
// runs nothing, and knows no tensor, no rank at work and no exchange but its size.
//
// In order: workload.go says what is asked and who computes it, stage_costs.go what blocks cost, time.go the seconds of
// a micro-step, program.go the order of everything, network.go how long that takes, timeline.go draws it, queue.go
// shares devices among jobs.
package forecast

import (
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Workload is what a request asks of the ranks, as far as time, bytes and memory depend on it: everything that is known
// before a weight is read.
type Workload struct {
	Spec *dit.Spec
	Y, X int // rows and columns of the latent, of all frames
	T    int // frames; 0: one
	// Batch is the number of pictures.
	Batch int
	// Text is the number of text tokens of each conditioning entry, without those that the network adds: in the joint
	// sequence, or as keys of the cross-attention.
	Text []int
	// References is the number of tokens of the references of each entry; nil: there are none.
	References []int
	// Biases is the number of ranges of each entry that have one (dit.Entry.Biases); nil: there are none.
	Biases []int
	// Prefix is the number of tokens in front of the text of every entry (dit.Entry.Prefix).
	Prefix int
	// Branches is the branch of each entry (positive 0, negative 1, ...); nil: every entry is a branch of its own.
	Branches []int
	// Device is what stages are balanced by: rates of one rank. The zero Device counts multiply-adds alone. It must be the
	// same wherever the same run is described, as it decides which blocks a stage has.
	Device Device
	// Unlike tells that the entries differ in more than the length of their texts: in area, times, guidance ...
	Unlike bool
	// Nets run beside the model. Simulate and bytes are those of the model alone, MemoryByRank counts all but weights.
	Nets []Net
	// Evaluations is how often the sampler calls the network, all entries active each time.
	Evaluations int
}

// valueOf is what a list by entry says of entry i: 0 where there is none.
func valueOf(list []int, i int) int {
	if list == nil {
		return 0
	}
	return list[i]
}

// jointText is the longest text that runs through the blocks.
func (w *Workload) jointText() (n int) {
	for i := range w.Text {
		n = max(n, w.Sequence(i).Text)
	}
	return n
}

// Sequence is the sequence of entry i: text and references in the joint sequence, image.
func (w *Workload) Sequence(i int) plan.Sequence {
	e := plan.Sequence{Image: w.Tokens()}
	if w.Spec.JointText() {
		e.Text = w.Prefix + w.Spec.TextTokens(w.Text[i]) + valueOf(w.References, i)
	}
	return e
}

// Together is how many entries the ranks of a cfg group evaluate as one batch: all of them where they are alike and few
// enough rows of each come to a rank of w.Device, otherwise 1. Plans that promise the same bits have one entry at a
// time.
func (w *Workload) Together(p plan.Plan) int {
	n := len(w.Text) / p.CFG
	if w.Unlike || len(w.Nets) > 0 || p.Deterministic || n*p.CFG != len(w.Text) || n < 2 {
		return 1
	}
	for i := range w.Text {
		if w.Text[i] != w.Text[0] || valueOf(w.References, i) != valueOf(w.References, 0) {
			return 1
		}
	}
	if slices.ContainsFunc(w.groups(p.CFG), func(entries []int) bool { return len(entries) != n }) {
		return 1
	}
	size := w.Sequence(0)
	rows := p.Items(w.Batch)[0].Len() * (size.Text + size.Image)
	if rows > w.Device.Together*p.Ulysses*p.Ring*p.Patches {
		return 1
	}
	return n
}

// merged is w with one entry a cfg group.
func (w Workload) merged(p plan.Plan) Workload {
	w.Text, w.Branches = w.Text[:p.CFG], nil
	if w.References != nil {
		w.References = w.References[:p.CFG]
	}
	if w.Biases != nil {
		w.Biases = w.Biases[:p.CFG]
	}
	return w
}

// branches is the branch of each entry.
func (w *Workload) branches() []int {
	if w.Branches != nil {
		return w.Branches
	}
	out := make([]int, len(w.Text))
	for i := range out {
		out[i] = i
	}
	return out
}

// groups lists the entries of each of n cfg groups.
func (w *Workload) groups(n int) [][]int {
	out, branches := make([][]int, n), w.branches()
	for i := range w.Text {
		g := plan.CFGGroup(branches, i, n)
		out[g] = append(out[g], i)
	}
	return out
}

// Tokens is the number of image tokens of one picture.
func (w *Workload) Tokens() int { return w.grid().Tokens() }

func (w *Workload) grid() dit.Grid { return w.Spec.FrameTokens(w.T, w.Y, w.X) }

// Partition is a workload on a plan: who computes what, in which order. It is made by NewPartition and not changed.
type Partition struct {
	Workload
	plan    plan.Plan
	mesh    plan.Mesh
	Patches []dit.Range // image tokens of each patch
	Lanes   []plan.Lane // blocks of each stop of a micro-step
	batch   []dit.Range // items of each data part
	entries [][]int     // of each cfg group
	each    int         // entries that are evaluated as one, whose items batch counts
	stores  bool        // K/V stores in use although there is one stage
	traits
	cut       [microSizes][][]dit.Rows // what places compute, by size of the micro-step and entry
	like      []int                    // of each block the first one that costs the same
	kinds     [][]kind                 // of the blocks of each lane
	spreadOut *Partition               // of spread evaluations; nil: there are none
	nets      []*Partition             // beside the model, without patches
	net       *Net                     // that this is; nil: a model
}

// NewPartition cuts a workload by a plan that has passed plan.Check.
func NewPartition(w Workload, p plan.Plan) *Partition {
	n := w.Together(p)
	if n > 1 {
		w = w.merged(p)
	}
	o := &Partition{
		Workload: w, plan: p, mesh: plan.Mesh{Plan: p}, batch: p.Items(w.Batch), traits: traitsOf(w.Spec),
		like: alike(w.Spec), each: n, entries: w.groups(p.CFG),
	}
	for i, items := range o.batch { // the items of all entries
		o.batch[i] = dit.Range{Start: n * items.Start, End: n * items.End}
	}
	lt, li := w.jointText(), w.Tokens()
	o.Patches = []dit.Range{{End: li}}
	if p.Pipe > 1 {
		o.Patches = plan.PatchRanges(lt, w.grid(), p.Patches)
	}
	o.cutRows()
	o.setLanes(o.cutLanes())
	for i := range w.Nets {
		if n := &w.Nets[i]; !n.Patch {
			o.nets = append(o.nets, o.besideOf(n))
		}
	}
	if p.Spread && p.Pipe > 1 {
		o.spreadOut = o.spread()
	}
	return o
}

// Micro-steps come in a few sizes: the whole picture, the first patch, which has the text, patches as long as the
// second one, as the last one, which has tokens that the network adds, and shorter ones between them. Micro-steps of
// one size cost the same, and first, second and last patch need most.
const microSizes = 5

// size numbers the size of a micro-step.
func (o *Partition) size(m plan.Micro) int {
	switch {
	case m.Whole:
		return 0
	case m.Patch == 0:
		return 1
	case o.Patches[m.Patch].Len() == o.Patches[1].Len():
		return 2
	case o.Patches[m.Patch].Len() == o.Patches[len(o.Patches)-1].Len():
		return 3
	}
	return 4
}

// cutRows works out what rows returns.
func (o *Partition) cutRows() {
	last, places := len(o.Patches)-1, o.plan.Places(false)
	for i, m := range [microSizes]plan.Micro{
		{Whole: true}, {}, {Patch: min(1, last)}, {Patch: last}, {Patch: max(0, last-1)},
	} {
		p := plan.Part{Whole: m.Whole, Tokens: o.Patches[m.Patch], Text: m.Patch == 0}
		o.cut[i] = make([][]dit.Rows, len(o.Text))
		for e := range o.Text {
			o.cut[i][e] = p.Rows(o.Sequence(e), places)
		}
	}
}

// rows returns what each rank of a sequence computes of an entry in a micro-step, by its place in the sequence; patches
// of one size stand for each other.
func (o *Partition) rows(m plan.Micro, entry int) []dit.Rows { return o.cut[o.size(m)][entry] }

// alike returns for each block the first one of its kind, which costs the same.
func alike(spec *dit.Spec) []int {
	out := make([]int, len(spec.Blocks))
	var kinds []dit.BlockSpec
	var first []int
	for n, b := range spec.Blocks {
		b.Params, b.AttentionParams, b.MLPParams, b.Skip = 0, 0, 0, min(b.Skip, 0)
		at := slices.Index(kinds, b)
		if at < 0 {
			at, kinds, first = len(kinds), append(kinds, b), append(first, n)
		}
		out[n] = first[at]
	}
	return out
}

// kind is some blocks of a lane that cost the same: the first block of their kind, how many there are, and which part
// of them is computed.
type kind struct {
	block, count int
	half         dit.Half
}

// setLanes sets Lanes, and counts the kinds of their blocks.
func (o *Partition) setLanes(lanes []plan.Lane) {
	o.Lanes, o.kinds = lanes, make([][]kind, len(lanes))
	for k, lane := range lanes {
		for n := lane.Start; n < lane.End; n++ {
			one := kind{block: o.like[n], half: lane.Half(n)}
			at := slices.IndexFunc(o.kinds[k], func(k kind) bool { return k.block == one.block && k.half == one.half })
			if at < 0 {
				at, o.kinds[k] = len(o.kinds[k]), append(o.kinds[k], one)
			}
			o.kinds[k][at].count++
		}
	}
}

// twin is the first place of the mesh whose rank does the same as that of c for other pictures or entries.
func (o *Partition) twin(c plan.Coord) plan.Coord {
	texts := func(group int) (out []int) {
		for _, i := range o.entries[group] {
			out = append(out, o.Text[i], valueOf(o.References, i), valueOf(o.Biases, i))
			for k := range o.Nets {
				for j, e := range o.Nets[k].Entries {
					if e == i {
						out = append(out, -k, valueOf(o.Nets[k].Types, j))
					}
				}
			}
		}
		return out
	}
	for d := range c.Data {
		if o.batch[d].Len() == o.batch[c.Data].Len() {
			c.Data = d
			break
		}
	}
	for g := range c.CFG {
		if slices.Equal(texts(g), texts(c.CFG)) {
			c.CFG = g
			break
		}
	}
	return c
}

// synchronous tells whether evaluation e runs the whole picture at once: warm-up, and always the first, which fills the
// K/V store. Evaluations that a cache leaves out depend on the picture and are not forecast.
func (o *Partition) synchronous(e int) bool {
	return len(o.Patches) == 1 || e < max(o.plan.Warmup, 1)
}

// micros lists the micro-steps in the order in which every rank runs them.
func (o *Partition) micros() []plan.Micro {
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

// Stage returns the stage that lane k belongs to: folded pipelines come back on the stages that they went down on.
func (o *Partition) Stage(k int) int {
	if k < o.plan.Pipe {
		return k
	}
	return 2*o.plan.Pipe - 2 - k
}

// RankOf returns the rank that does the work of a member of the executor's team, in which every lane of a folded stage
// is a member of its own.
func (o *Partition) RankOf(member int) int {
	team := o.plan
	team.Pipe = len(o.Lanes)
	at := plan.Mesh{Plan: team}.At(member)
	at.Pipe = o.Stage(at.Pipe)
	return o.mesh.Rank(at)
}

// own calls f for every lane of the stage of c.
func (o *Partition) own(c plan.Coord, f func(k int)) {
	for k := range o.Lanes {
		if o.Stage(k) == c.Pipe {
			f(k)
		}
	}
}

// stored tells whether attention runs from K/V stores, or as if it did.
func (o *Partition) stored() bool { return o.plan.Pipe > 1 || o.stores || o.plan.InOrder() }

// heads is how many heads of keys and values each Ulysses place of c's tensor place attends with.
func (o *Partition) heads(c plan.Coord) []dit.Range {
	return o.plan.GroupHeads(o.localHeads(c))
}

// gathered counts the rows of an attention that the Ulysses group at ring place r brings.
func (o *Partition) gathered(rows []dit.Rows, r int, imageOnly bool) int {
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
func (o *Partition) cutLanes() []plan.Lane {
	if o.plan.Stops(plan.Skips(o.Spec)) == 1 {
		return plan.OneLane(len(o.Spec.Blocks))
	}
	if o.plan.Owns() {
		return OwnLanes(o.Spec, o.plan, o.Device)
	}
	costs, ends := o.blockSeconds()
	return plan.Cut(o.Spec, costs, ends, o.plan.StageSpeeds())
}
