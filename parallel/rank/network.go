package rank

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// network is one network of a session on a rank, the model or a control net: its entries, the rows of them that the
// rank computes, and its blocks.
type network struct {
	memory
	id      uint64 // of the session
	model   dit.Model
	open    OpenCommand // of a net: made from the model's
	comms   [plan.AxisCount]comm.Comm
	lanes   *LaneStore
	weights *prefetcher // nil: all weights are in place
	pos     *Position
	stop    func() bool     // reports whether the session was cancelled; nil: never
	images  []plan.Sequence // by entry of a net: the sequence of the model whose image rows it computes; nil: its own

	lane         lane
	patch, whole pass            // of evaluations of one patch, and of synchronous ones
	rowOf        map[float32]int // timestep -> row of the modulations
	entries      []*sessionEntry
}

// memory is the arenas of a session: that of env keeps what lasts as long as the session.
type memory struct {
	env  dit.Env
	act  *engine.Arena // activations
	comm *engine.Arena // what exchanges read and write
}

// sessionEntry is one prepared conditioning entry; a foreign one has no p.
type sessionEntry struct {
	grid      dit.Grid
	p         *dit.Prepared
	m         *dit.Modulation // for the expected timesteps
	size      plan.Sequence   // tokens that go through the blocks
	image     plan.Sequence   // whose image rows the entry computes
	attention attention
	bias      *biasTable // nil: none
}

// entryRun is one entry of one evaluation.
type entryRun struct {
	entry  int
	whole  bool // in a synchronous evaluation
	state  *dit.State
	input  engine.Tensor // rows of the latent [B, L/P, C*p*p], on the first stage
	attend func(dit.Attention)
	alike  func(dit.Attention) // dit.Env.AttendAlike
	fresh  bool                // modulations of blocks were not computed ahead
	// scattered moves rows between tensor ranks; nil: each of them keeps all rows
	scattered *scattered
}

// errStopped ends an evaluation whose session was canceled.
var errStopped = &fault.Error{Code: fault.Cancelled, Text: "stopped before the next block"}

// prepare computes what does not depend on the latent: text, and modulations for the expected timesteps. reserve takes
// what else is kept of an entry.
func (n *network) prepare(reserve func(i int, e *sessionEntry)) error {
	spec, split := n.model.Spec(), n.open.Plan
	n.lane = newLane(n.open.Lanes, split.Pipe, n.comms[plan.AxisPipe].Rank(), len(spec.Blocks))
	n.patch, n.whole = newPasses(split, n.lane, n.comms, len(spec.Blocks))
	n.rowOf = map[float32]int{}
	var rows []float32
	for _, t := range n.open.Timesteps {
		if _, ok := n.rowOf[t]; !ok && len(rows) < plan.ModulationRows {
			n.rowOf[t] = len(rows)
			rows = append(rows, t)
		}
	}
	if err := n.weights.use(len(spec.Blocks)); err != nil {
		return err
	}
	for i, in := range n.open.Entries {
		layer(n.env, "text")
		e := &sessionEntry{grid: in.Grid}
		n.entries = append(n.entries, e)
		if in.Foreign {
			continue
		}
		var err error
		if e.p, err = n.model.Prepare(n.env, in.Entries, in.Grid); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		layer(n.env, "modulation")
		if len(rows) > 0 {
			e.m = n.model.Modulate(n.env, e.p, forEach(e.p, rows))
		}
		e.size = plan.Sequence{Text: n.textOf(e.p), Image: spec.Split(e.grid)}
		e.image = e.size
		if n.images != nil {
			e.image = n.images[i]
		}
		e.attention = newAttention(split, n.lane, n.lanes, entryKey{n.id, i})
		keys := e.attention.Reserve(n.env, n.extent(e))
		reserve(i, e)
		e.bias = n.biases(e, keys)
	}
	return n.prepareBlocks()
}

// forEach repeats each timestep once per entry, as Modulate takes them.
func forEach(p *dit.Prepared, timesteps []float32) (out []float32) {
	for _, t := range timesteps {
		out = append(out, slices.Repeat([]float32{t}, p.N)...)
	}
	return out
}

// prepareBlocks prepares all entries block by block, because weights may be brought block by block. A preface
// goes through the stages of a pipeline, once; with large references that takes as long as an evaluation, and stops as
// one does.
func (n *network) prepareBlocks() error {
	blocks, spec, pipe := n.whole.blocks, n.model.Spec(), n.comms[plan.AxisPipe]
	prepare := n.reduced(n.env)
	if spec.Preface {
		prepare.Arena = n.act
		if tensor := n.comms[plan.AxisTensor]; tensor.Size() > 1 { // in both forms: each rank has all rows
			prepare.Reduce = func(t engine.Tensor) { tensor.Run(comm.NewAllReduce(t)) }
		}
	}
	preface := func(move func(text engine.Tensor)) {
		for _, e := range n.entries {
			if spec.Preface && e.p != nil && e.p.Lt > 0 {
				move(e.p.Text)
			}
		}
	}
	if blocks.Start > 0 {
		n.pos.at("preface of stage %d", pipe.Rank()-1)
		preface(func(text engine.Tensor) { pipe.SendRecv(text, pipe.Rank()-1, engine.Tensor{}, -1) })
	}
	for b := blocks.Start; b < blocks.End; b++ {
		if spec.Preface {
			n.pos.at("preface in block %d", b)
			if n.stopped() {
				return errStopped
			}
		}
		if err := n.weights.use(b); err != nil {
			return err
		}
		for _, e := range n.entries {
			if e.p == nil {
				continue
			}
			layer(n.env, "text")
			n.model.PrepareBlock(prepare, e.p, b)
			if e.m != nil {
				layer(n.env, "modulation")
				n.model.ModulateBlock(n.env, e.m, b)
			}
		}
	}
	if blocks.End < len(spec.Blocks) {
		preface(func(text engine.Tensor) { pipe.SendRecv(engine.Tensor{}, -1, text, pipe.Rank()+1) })
	}
	return nil
}

// textOf returns how many text tokens of an entry go through the blocks.
func (n *network) textOf(p *dit.Prepared) int {
	if n.model.Spec().JointText() {
		return p.Lt
	}
	return 0
}

// extent returns what this rank attends to of an entry.
func (n *network) extent(e *sessionEntry) extent {
	out := extent{spec: n.model.Spec(), size: e.size, batch: n.open.Batch, heads: n.heads()}
	for b := n.lane.held.Start; b < n.lane.held.End; b++ {
		out.blocks = append(out.blocks, b)
	}
	out.ranks, _, _ = n.rows(wholeEvaluation(), e)
	return out
}

// heads returns how many heads of keys and values this rank attends with.
func (n *network) heads() int {
	tensor, ulysses := n.comms[plan.AxisTensor], n.comms[plan.AxisUlysses]
	local := dit.Held{Rank: tensor.Rank(), Ranks: tensor.Size()}.Share(n.model.Spec().Groups()).Len()
	return n.open.Plan.GroupHeads(local)[ulysses.Rank()].Len()
}

// biases makes the table of an entry whose keys are attended to in the given order, nil if it has none. Entries that
// are evaluated as one batch have the same biases.
func (n *network) biases(e *sessionEntry, keys []dit.Rows) *biasTable {
	spec := n.model.Spec()
	if !spec.Biases && !spec.Keyframes { // the hint of a patch, for one, is no entry
		return nil
	}
	first := &e.p.Entries[0]
	if (!spec.Biases || len(first.Biases) == 0) && (!spec.Keyframes || !weighs(first)) {
		return nil
	}
	return newBiasTable(n.env, first, e.grid.Frame(), e.size, keys)
}

// pass returns how an evaluation goes through this rank.
func (n *network) pass(c *EvaluateCommand) *pass {
	if c.Whole {
		return &n.whole
	}
	return &n.patch
}

// rows returns what the ranks of the sequence compute of an entry in an evaluation (ring outside), the part of this
// rank (wide), and the part of that which it keeps between products (narrow).
func (n *network) rows(c *EvaluateCommand, e *sessionEntry) (all []dit.Rows, wide, narrow dit.Rows) {
	p, ulysses := n.pass(c), n.comms[plan.AxisUlysses]
	all = c.Rows(e.size, p.places)
	for i, r := range c.Rows(e.image, p.places) {
		all[i].Image = e.imageOf(r)
	}
	wide = all[p.ring.Rank()*ulysses.Size()+ulysses.Rank()]
	return all, wide, n.open.Plan.Kept(wide, n.comms[plan.AxisTensor].Rank())
}

// imageOf returns the image rows of an entry where the sequence that it follows has rows r. A model may have additional
// tokens after the picture's that its nets do not see.
func (e *sessionEntry) imageOf(r dit.Rows) dit.Range {
	n := e.size.Image
	return dit.Range{Start: min(r.Image.Start, n), End: min(r.Image.End, n)}
}

// wholeEvaluation returns an evaluation of all tokens, as far as rows are concerned.
func wholeEvaluation() *EvaluateCommand { return &EvaluateCommand{Whole: true} }

// begin makes the state of one entry for the rows of this rank.
func (n *network) begin(env dit.Env, entry int, c *EvaluateCommand) *entryRun {
	spec, e := n.model.Spec(), n.entries[entry]
	m, row, ok := e.m, 0, false
	if m != nil {
		row, ok = n.rowOf[c.Timestep]
	}
	layer(env, "modulation")
	if !ok { // a timestep that was not expected
		m, row = n.model.Modulate(env, e.p, forEach(e.p, []float32{c.Timestep})), 0
	}
	all, wide, rows := n.rows(c, e)
	seq := &sequence{
		ops: env.Ops, arena: n.comm, ulysses: n.comms[plan.AxisUlysses], ring: n.pass(c).ring, rows: all, whole: c.Whole,
		plan: n.open.Plan, bias: e.bias,
	}
	run := &entryRun{
		entry: entry, whole: c.Whole, state: dit.NewState(env, spec, e.p, m, row, n.open.Batch, rows, wide),
		attend: seq.hook(e.attention), alike: seq.alikeHook(), fresh: !ok,
	}
	if n.open.Plan.Scatter {
		run.scattered = newScattered(n.open.Plan, n.comms[plan.AxisTensor], wide)
	}
	return run
}

// ends returns how many rows of each item a rank reads and writes: its rows of the image, and those that all ranks of
// the sequence have.
func (n *network) ends(run *entryRun) int {
	return run.state.Rows.Image.Len() + n.model.Spec().Alike(n.entries[run.entry].grid)
}

// upload copies the rows of the latent to the device.
func (n *network) upload(env dit.Env, run *entryRun, x []float32) engine.Tensor {
	spec := n.model.Spec()
	in := env.Arena.Alloc(env.DType, n.open.Batch, n.ends(run), spec.FeaturesIn())
	layer(env, "embed")
	if !env.Arena.Measuring() {
		env.Ops.Upload(in, x)
	}
	return in
}

// stopped reports whether the session must not begin another block.
func (n *network) stopped() bool { return n.stop != nil && n.stop() }

// blocks calls issue for every block of a range, until the session is cancelled or issue returns an error.
func (n *network) blocks(of dit.Range, issue func(b int) error) error {
	for b := of.Start; b < of.End; b++ {
		n.pos.block(b)
		if n.stopped() {
			n.pos.count(-1)
			return errStopped
		}
		if err := issue(b); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) block(env dit.Env, run *entryRun, b int, skip engine.Tensor) {
	mark := env.Arena.Mark()
	if run.fresh {
		layer(env, "modulation")
		n.model.ModulateBlock(env, run.state.M, b)
	}
	layer(env, "qkv")
	env.Attend = func(a dit.Attention) {
		run.attend(a)
		layer(env, "mlp")
	}
	env.AttendAlike = run.alike
	if run.scattered != nil {
		env.Gather, env.Scatter = run.scattered.gather, run.scattered.scatter
	}
	n.model.Block(env, b, run.state, skip)
	env.Arena.Release(mark)
}

// reduced returns env with the all-reduces that products and norms of this network need.
func (n *network) reduced(env dit.Env) dit.Env {
	tensor := n.comms[plan.AxisTensor]
	env.Reduce, env.Sum = nil, nil
	if tensor.Size() > 1 {
		env.Sum = func(t engine.Tensor) { tensor.Run(comm.NewAllReduce(t)) }
		if !n.open.Plan.Scatter {
			env.Reduce = env.Sum
		}
	}
	return env
}
