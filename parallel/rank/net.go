package rank

import (
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// net is a control net beside the model of a session. Its entries are those of the model that have the net. They are
// computed on the same rows by the same ranks or, in a pipeline, on the whole picture by every rank. A net that follows
// the model runs between its blocks, and never in a pipeline.
type net struct {
	network
	controlNet dit.Control
	// follows is the model of a net whose blocks run between those of the base model; nil: they all run before them
	follows dit.Follower
	feeds   [][]int // by block of the net, the blocks of the model after which its output is added
	on      []*controlled
}

// controlled is an entry of a net.
type controlled struct {
	ControlInput
	entry   int             // index of the entry of the model
	rows    dit.Range       // image rows that the net computes
	gate    engine.Tensor   // [1, E], the strength
	outputs []engine.Tensor // by block of the net: the output [B, rows, E]; zero: no block of this rank needs it
	works   bool            // in this evaluation
	run     *entryRun       // of a net that follows, in this evaluation
	next    int             // next block of run
}

// newNet makes a net without entries on the arenas of the model.
func newNet(base *network, m dit.Control) *net {
	n := &net{controlNet: m, feeds: m.Feeds(base.model.Spec())}
	o := OpenCommand{
		Plan: base.open.Plan.ForNets(), DType: base.open.DType, Batch: base.open.Batch, Timesteps: base.open.Timesteps,
	}
	if f, follows := m.(dit.Follower); follows {
		n.follows, o.Timesteps = f, nil // it uses those of the model
	}
	o.Lanes = []dit.Range{{End: len(n.feeds)}}
	n.network = network{
		memory: base.memory, id: base.id, model: m, open: o, comms: base.comms, lanes: base.lanes, pos: base.pos,
		stop: base.stop,
	}
	for a := range n.comms {
		if a := plan.Axis(a); base.open.Plan.Pipe > 1 || a == plan.AxisPipe || a == plan.AxisSpread {
			n.comms[a] = comm.NewSilent(0, 1)
		}
	}
	return n
}

func (n *net) attach(base *network, entry int, c ControlInput) {
	grid := base.entries[entry].grid
	n.open.Entries = append(n.open.Entries, EntryInput{
		Entries: []dit.Entry{c.Entry}, Grid: n.model.Spec().Tokens(grid.LatentY, grid.LatentX),
	})
	n.images = append(n.images, base.entries[entry].size)
	n.on = append(n.on, &controlled{ControlInput: c, entry: entry})
}

// prepareOn prepares the entries of the net and takes their memory.
func (n *net) prepareOn(base *network) error {
	if err := n.prepare(func(int, *sessionEntry) {}); err != nil {
		return err
	}
	for k, e := range n.on {
		n.take(base, e, n.entries[k])
	}
	return nil
}

// take takes the memory of an entry: for its strength, and for its outputs that blocks of this lane need.
func (n *net) take(base *network, e *controlled, netEntry *sessionEntry) {
	_, wide, _ := n.rows(wholeEvaluation(), netEntry)
	e.rows = wide.Image
	width := base.model.Spec().Width
	e.gate = base.gate(e.Strength)
	e.outputs = make([]engine.Tensor, len(n.feeds))
	if n.follows != nil { // outputs are used one after the other, and share memory
		output := base.env.Arena.Alloc(base.env.DType, base.open.Batch, e.rows.Len(), width)
		for k := range e.outputs {
			if len(n.feeds[k]) > 0 {
				e.outputs[k] = output
			}
		}
		return
	}
	for k, blocks := range n.feeds {
		if base.open.Plan.Spread || slices.ContainsFunc(blocks, base.lane.held.Has) {
			e.outputs[k] = base.env.Arena.Alloc(base.env.DType, base.open.Batch, e.rows.Len(), width)
		}
	}
}

// gate allocates a strength, [1, E], and fills it.
func (n *network) gate(strength float32) engine.Tensor {
	g := n.env.Arena.Alloc(engine.F32, 1, n.model.Spec().Width)
	if !n.env.Arena.Measuring() {
		n.env.Ops.Upload(g, slices.Repeat([]float32{strength}, g.Len()))
	}
	return g
}

// evaluate runs the net for its entries among those of an evaluation, and leaves the outputs in controlled.outputs. Of
// a net that follows it begins the runs.
func (n *net) evaluate(env dit.Env, c *EvaluateCommand, runs []*entryRun) error {
	netCommand, measuring := EvaluateCommand{Index: c.Index, Timestep: c.Timestep, Whole: true}, env.Arena.Measuring()
	for k, e := range n.on {
		at := slices.Index(c.Entries, e.entry)
		if e.works = measuring || at >= 0 && c.Sigma <= e.Start && c.Sigma >= e.End; !e.works {
			continue
		}
		if n.follows != nil {
			base := runs[slices.IndexFunc(runs, func(r *entryRun) bool { return r.entry == e.entry })]
			e.run, e.next = n.begin(env, k, &netCommand), 0
			n.follows.Follow(e.run.state, base.state)
			n.follows.Embed(env, e.run.state, engine.Tensor{})
			continue
		}
		var x []float32
		if !measuring {
			x = c.Latents[at]
		}
		netCommand.Entries, netCommand.Inputs = append(netCommand.Entries, k), append(netCommand.Inputs, x)
	}
	if n.follows != nil {
		return nil
	}
	return n.run(env, &netCommand)
}

// run evaluates the net for some of its entries.
func (n *net) run(env dit.Env, c *EvaluateCommand) error {
	env = n.reduced(env)
	mark := env.Arena.Mark()
	defer env.Arena.Release(mark)
	runs := make([]*entryRun, len(c.Entries))
	for k, i := range c.Entries {
		runs[k] = n.begin(env, i, c)
		input := n.upload(env, runs[k], c.Inputs[k])
		n.model.Embed(env, runs[k].state, input)
	}
	return n.blocks(n.lane.held, func(b int) error {
		for _, run := range runs {
			n.block(env, run, b)
		}
		return nil
	})
}

// block runs block b of the net for one entry and computes its output.
func (n *net) block(env dit.Env, run *entryRun, b int) {
	n.network.block(env, run, b, engine.Tensor{}) // blocks of nets have no skip inputs
	if e := n.on[run.entry]; run.state.Rows.Image.Len() > 0 && !e.outputs[b].IsZero() {
		layer(env, "control")
		n.controlNet.Output(env, b, run.state, e.outputs[b], e.gate)
	}
}

// follow runs the blocks of a net that follows, up to the one that feeds block b of the model, which is next.
func (n *net) follow(env dit.Env, run *entryRun, b int) {
	last := slices.IndexFunc(n.feeds, func(blocks []int) bool { return slices.Contains(blocks, b) })
	if n.follows == nil || last < 0 {
		return
	}
	layer(env, "control")
	env = n.reduced(env)
	for _, e := range n.on {
		if e.entry != run.entry || !e.works {
			continue
		}
		for ; e.next <= last; e.next++ {
			n.follows.Join(env, e.next, e.run.state, func() engine.Tensor { return run.wideImage(env, e.rows) })
			n.block(env, e.run, e.next)
		}
	}
}

// wideImage returns the image rows [B, rows, E] of the model that its products see, gathered from the tensor ranks if
// those share them.
func (r *entryRun) wideImage(env dit.Env, rows dit.Range) engine.Tensor {
	x, of := r.state.ImageRows(), r.state.Wide.ImageOnly()
	if r.scattered != nil {
		whole := env.Arena.Alloc(x.DType, x.Dim(0), of.Len(), x.Dim(2))
		r.scattered.gather(whole, x, of)
		x = whole
	}
	return x.Slice(1, 0, rows.Len())
}

// add adds the net's output for block b of the model to x, rows r of the image.
func (n *net) add(env dit.Env, run *entryRun, b int, x engine.Tensor, r dit.Range) {
	for _, e := range n.on {
		for k, blocks := range n.feeds {
			if e.entry != run.entry || !e.works || !slices.Contains(blocks, b) {
				continue
			}
			if end := min(r.End, e.rows.End); end > r.Start {
				to := x.Slice(1, 0, end-r.Start)
				env.Ops.Add(to, to, e.outputs[k].Slice(1, r.Start-e.rows.Start, end-e.rows.Start))
			}
		}
	}
}
