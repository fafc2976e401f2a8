// Package forecast predicts what a plan costs before any weights are read: time (time.go, simulate.go), bytes sent
// (bytes.go) and memory (memory.go) of every rank. With these it cuts stages (lanes.go) and finds the fastest plan that
// fits (planner.go). It knows plans, the outline of a model (dit.Outline), on which it records sessions and blocks, and
// the rates of devices (package hardware). It computes nothing, and knows of an exchange its size alone.
//
// In order: workload.go says what is asked and who computes it, record.go what blocks do, stage_costs.go what that
// costs, time.go the seconds of a micro-step, schedule.go the order of everything and how long it takes.
package forecast

import (
	"fmt"
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// Workload is what a request asks of the ranks, as far as time, bytes and memory depend on it. All of it is known
// before any weights are read.
type Workload struct {
	Spec *dit.Spec
	Y, X int // rows and columns of the latent, over all frames
	T    int // frames; 0: one
	// SoundY and SoundX are the rows and columns of the sound's latent, 0: there is none.
	SoundY, SoundX int
	// Batch is the number of images.
	Batch int
	// Text is the number of text tokens of each conditioning entry, without those that the network adds: in the joint
	// sequence, or as keys of the cross-attention.
	Text []int
	// References is the number of reference tokens of each entry; nil: there are none.
	References []int
	// Biases is the number of biases of each entry (dit.Entry.Biases); nil: there are none.
	Biases []int
	// Prefix is the number of tokens in front of the text of every entry (dit.Entry.Prefix).
	Prefix int
	// Vision is the most rows of a picture encoder's states that an entry has (dit.Entry.Vision), Frames the part of the
	// timestep that each frame has in all entries (dit.Entry.Frames), SoundRows that of each row of the sound.
	Vision            int
	Frames, SoundRows []float32
	Connected         bool            // of all entries (dit.Entry.Connected)
	Keyframes         []dit.Keyframes // of all entries (dit.Entry.Keyframes)
	// SoundReferences is the rows of each entry's reference sound (dit.Entry.SoundReference); nil: there are none.
	SoundReferences []int
	// Branches is the branch of each entry (positive 0, negative 1, ...); nil: every entry is a branch of its own.
	Branches []int
	// Device has the rates of one rank, by which stages are balanced. The zero Device counts multiply-adds alone. It
	// must be the same wherever the same run is described, because it decides which blocks a stage has.
	Device hardware.Device
	// Unlike says that the entries differ in more than the length of their texts: in area, times, guidance ...
	Unlike bool
	// Nets run beside the model. TrafficByRank ignores them, MemoryByRank their weights.
	Nets []Net
	// Evaluations is how often the sampler evaluates the network, each time with all entries.
	Evaluations int

	net  *Net      // the net of which this is the work; nil: of a model
	base *dit.Spec // the model beside which the net runs
}

// Key returns a text that differs for workloads of one model and device that differ. Nets are known by their keys.
func (w Workload) Key() string {
	w.Spec, w.Device, w.net, w.base, w.Nets = nil, hardware.Device{}, nil, nil, slices.Clone(w.Nets)
	for i := range w.Nets {
		w.Nets[i].Spec = nil
	}
	return fmt.Sprint(w)
}

// valueOf returns element i of a list by entry, 0 if the list is nil.
func valueOf(list []int, i int) int {
	if list == nil {
		return 0
	}
	return list[i]
}

// jointText returns the length of the longest text that runs through the blocks.
func (w *Workload) jointText() (n int) {
	for i := range w.Text {
		n = max(n, w.Sequence(i).Text)
	}
	return n
}

// Sequence returns the lengths of the sequence of entry i: text and references in the joint sequence, and image.
func (w *Workload) Sequence(i int) plan.Sequence {
	e := plan.Sequence{Image: w.Tokens()}
	if w.Spec.JointText() {
		e.Text = w.Prefix + w.Spec.TextTokens(w.Text[i]) + valueOf(w.References, i)
	}
	return e
}

// preface returns the number of rows of entry i that run through the blocks once per request (dit.Spec.Preface).
func (w *Workload) preface(i int) int {
	if !w.Spec.Preface {
		return 0
	}
	return w.Spec.TextTokens(w.Text[i]) + valueOf(w.References, i)
}

// Together returns how many entries the ranks of a cfg group evaluate as one batch: all of them if they are alike and
// few enough rows of each fall to a rank of w.Device, otherwise 1. Plans that promise the same bits evaluate one entry
// at a time.
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
	if rows > w.Device.BatchRows*p.Ulysses*p.Ring*p.Patches {
		return 1
	}
	return n
}

// merged returns w with one entry per cfg group.
func (w Workload) merged(p plan.Plan) Workload {
	w.Text, w.Branches = w.Text[:p.CFG], nil
	if w.References != nil {
		w.References = w.References[:p.CFG]
	}
	if w.Biases != nil {
		w.Biases = w.Biases[:p.CFG]
	}
	if w.SoundReferences != nil {
		w.SoundReferences = w.SoundReferences[:p.CFG]
	}
	return w
}

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

// groups returns the entries of each of n cfg groups.
func (w *Workload) groups(n int) [][]int {
	out, branches := make([][]int, n), w.branches()
	for i := range w.Text {
		g := plan.CFGCoord(branches, i, n)
		out[g] = append(out[g], i)
	}
	return out
}

// Tokens returns the number of image tokens of one image that plans split.
func (w *Workload) Tokens() int { return w.Spec.Split(w.grid()) }

func (w *Workload) grid() dit.Grid {
	g := (&dit.Entry{Keyframes: w.Keyframes}).Thinned(w.Spec.FrameTokens(w.T, w.Y, w.X))
	if w.SoundX > 0 {
		g = w.Spec.WithSound(g, w.SoundY, w.SoundX)
	}
	return g
}

// Partition is a workload split by a plan: who computes what, in which order. It is immutable once built.
type Partition struct {
	Workload
	plan      plan.Plan
	mesh      plan.Mesh
	Patches   []dit.Range              // image tokens of each patch
	Lanes     []dit.Range              // in the order in which a micro-step runs them
	batch     []dit.Range              // items of each data part
	entries   [][]int                  // by cfg group
	each      int                      // entries that are evaluated as one batch; batch counts the items of all
	stores    bool                     // K/V stores are in use although there is one stage
	cut       [microSizes][][]dit.Rows // rows that places compute, by size of the micro-step and entry
	like      []int                    // by block: the first one that costs the same
	kinds     [][]kind                 // of blocks, by lane
	spreadOut *Partition               // for spread evaluations; nil: there are none
}

// NewPartition splits a workload by a plan, which must have passed plan.Plan.Check.
func NewPartition(w Workload, p plan.Plan) *Partition {
	n := w.Together(p)
	if n > 1 {
		w = w.merged(p)
	}
	o := &Partition{
		Workload: w, plan: p, mesh: plan.Mesh{Plan: p}, batch: p.Items(w.Batch),
		like: alike(w.Spec), each: n, entries: w.groups(p.CFG),
	}
	for i, items := range o.batch { // count the items of all entries
		o.batch[i] = dit.Range{Start: n * items.Start, End: n * items.End}
	}
	lt, li := w.jointText(), w.Tokens()
	o.Patches = []dit.Range{{End: li}}
	if p.Patches > 1 {
		o.Patches = plan.PatchRanges(lt, w.grid(), p.Patches)
	}
	o.cutRows()
	o.setLanes(o.cutLanes())
	if p.Spread && p.Pipe > 1 {
		o.spreadOut = o.spread()
	}
	return o
}

// spread returns the partition of spread evaluations: the ranks are the same, but stages count as places of the ring.
func (o *Partition) spread() *Partition {
	w := *o
	w.plan.Ring, w.plan.Pipe, w.plan.Patches, w.stores = o.plan.Pipe*o.plan.Ring, 1, 1, true
	w.mesh = plan.Mesh{Plan: w.plan}
	w.setLanes([]dit.Range{{End: len(o.Spec.Blocks)}})
	w.cutRows()
	return &w
}

// spreadCoord returns the coordinates of a rank in the partition of spread evaluations.
func (o *Partition) spreadCoord(c plan.Coord) plan.Coord {
	c.Ring, c.Pipe = c.Pipe*o.plan.Ring+c.Ring, 0
	return c
}

// Micro-steps have a few sizes: the whole image, the first patch (with the text), patches as long as the second one,
// patches as long as the last one (with the network's padding tokens), and shorter ones in between. Micro-steps of one
// size cost the same, and the first, second and last patch need most.
const microSizes = 5

// size returns the index of a micro-step's size.
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

// bySize calls f with one of the micro-steps of each size, and how many of them there are.
func (o *Partition) bySize(micros []plan.Micro, f func(m plan.Micro, n int)) {
	var count [microSizes]int
	var one [microSizes]plan.Micro
	for _, m := range micros {
		count[o.size(m)]++
		one[o.size(m)] = m
	}
	for size, n := range count {
		if n > 0 {
			f(one[size], n)
		}
	}
}

// cutRows computes what rows returns.
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

// rows returns what each rank of a sequence computes of an entry in a micro-step, by its place in the sequence. Patches
// of one size stand for each other, so only the lengths are those of the patch.
func (o *Partition) rows(m plan.Micro, entry int) []dit.Rows { return o.cut[o.size(m)][entry] }

// alike returns for each block the first one that costs the same. Blocks of one kind that differ have other numbers of
// parameters.
func alike(spec *dit.Spec) []int {
	out := make([]int, len(spec.Blocks))
	var kinds []dit.BlockSpec
	var first []int
	for n, b := range spec.Blocks {
		b.Skip = min(b.Skip, 0)
		at := slices.Index(kinds, b)
		if at < 0 {
			at, kinds, first = len(kinds), append(kinds, b), append(first, n)
		}
		out[n] = first[at]
	}
	return out
}

// kind is a set of blocks of a lane that cost the same: the first block with that cost, and how many there are.
type kind struct{ block, count int }

// setLanes sets Lanes and counts the kinds of their blocks.
func (o *Partition) setLanes(lanes []dit.Range) {
	o.Lanes, o.kinds = lanes, make([][]kind, len(lanes))
	for k, lane := range lanes {
		for n := lane.Start; n < lane.End; n++ {
			at := slices.IndexFunc(o.kinds[k], func(k kind) bool { return k.block == o.like[n] })
			if at < 0 {
				at, o.kinds[k] = len(o.kinds[k]), append(o.kinds[k], kind{block: o.like[n]})
			}
			o.kinds[k][at].count++
		}
	}
}

// twin returns the first coordinates whose rank does the same as that at c for other images or entries.
func (o *Partition) twin(c plan.Coord) plan.Coord {
	texts := func(group int) (out []int) {
		for _, i := range o.entries[group] {
			out = append(out, o.Text[i], valueOf(o.References, i), valueOf(o.Biases, i),
				valueOf(o.SoundReferences, i))
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

// whole returns how many evaluations run the whole image at once: during warm-up, and always the first one, which
// fills the K/V store. Evaluations that a cache skips depend on the image and are not predicted.
func (o *Partition) whole() int {
	if len(o.Patches) == 1 {
		return o.Evaluations
	}
	return min(o.Evaluations, max(o.plan.Warmup, 1))
}

// micros returns the micro-steps in the order in which every rank runs them.
func (o *Partition) micros() []plan.Micro {
	var out []plan.Micro
	for e := range o.Evaluations {
		if e < o.whole() {
			out = append(out, plan.Micro{Evaluation: e, Whole: true})
			continue
		}
		for m := range o.Patches {
			out = append(out, plan.Micro{Evaluation: e, Patch: m})
		}
	}
	return out
}

// Stage returns the stage of lane k. Folded pipelines come back through the stages that they went down.
func (o *Partition) Stage(k int) int {
	if k < o.plan.Pipe {
		return k
	}
	return 2*o.plan.Pipe - 2 - k
}

func (o *Partition) lanesOf(c plan.Coord) (out []int) {
	for k := range o.Lanes {
		if o.Stage(k) == c.Pipe {
			out = append(out, k)
		}
	}
	return out
}

// stored reports whether attention reads from K/V stores, or works as if it did.
func (o *Partition) stored() bool { return o.plan.Pipe > 1 || o.stores || o.plan.InOrder() }

// gathers reports whether ring places give each other their rows in one gather.
func (o *Partition) gathers() bool { return o.stored() || o.plan.Gathers() }

// heads returns which key and value heads each Ulysses place of c's tensor rank attends with.
func (o *Partition) heads(c plan.Coord) []dit.Range {
	return o.plan.GroupHeads(o.localHeads(c))
}

// gathered returns how many rows the Ulysses group at ring place r brings into an attention.
func (o *Partition) gathered(rows []dit.Rows, r int, imageOnly bool) int {
	n := 0
	for _, row := range rows[r*o.plan.Ulysses : (r+1)*o.plan.Ulysses] {
		n += attended(row, imageOnly)
	}
	return n
}

// attended returns how many rows take part in an attention.
func attended(r dit.Rows, imageOnly bool) int {
	if imageOnly {
		return r.Image.Len()
	}
	return r.Len()
}

// cutLanes cuts the blocks into the lanes of a plan by their costs.
func (o *Partition) cutLanes() []dit.Range {
	if o.plan.Stops(plan.Skips(o.Spec)) == 1 {
		return []dit.Range{{End: len(o.Spec.Blocks)}}
	}
	if o.plan.Owns() {
		return OwnLanes(o.Spec, o.plan, o.Device)
	}
	costs, ends := o.blockSeconds()
	return plan.Cut(o.Spec, costs, ends, o.plan.StageSpeeds())
}
