package rank

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// net is a control net beside the model of a session. It is a session of its own whose entries are those of the model
// that have the net. They are computed on the same rows by the same ranks or, in a pipeline, on the whole picture by
// every rank. A net that follows the model runs between its blocks, and never in a pipeline.
type net struct {
	of    *session
	model dit.Control
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

// prepareNets opens the sessions of all control nets and prepares the patches.
func (s *session) prepareNets() error {
	byKey := map[string]*net{}
	for i, in := range s.open.Entries {
		for _, c := range in.Control {
			if c.Patch {
				if err := s.preparePatch(i, c); err != nil {
					return err
				}
				continue
			}
			n := byKey[c.Model]
			if n == nil {
				model, ok := s.resident(c.Model)
				m, isNet := dit.As[dit.Control](model)
				if !ok || !isNet {
					return fmt.Errorf("control net %s is not resident", c.Model)
				}
				n = s.newNet(m)
				byKey[c.Model], s.nets = n, append(s.nets, n)
			}
			own := EntryInput{Entries: []dit.Entry{c.Entry}, Grid: n.model.Spec().Tokens(in.Grid.LatentY, in.Grid.LatentX)}
			n.of.open.Entries = append(n.of.open.Entries, own)
			n.on = append(n.on, &controlled{ControlInput: c, entry: i})
		}
	}
	for _, n := range s.nets {
		if err := n.of.prepare(); err != nil {
			return err
		}
		for k, e := range n.on {
			s.take(n, e, &n.of.entries[k])
		}
	}
	return nil
}

// newNet makes the session of a net on the arenas of s.
func (s *session) newNet(m dit.Control) *net {
	n := &net{model: m, feeds: m.Feeds(s.model.Spec())}
	o := OpenCommand{Plan: s.open.Plan.ForNets(), DType: s.open.DType, Batch: s.open.Batch, Timesteps: s.open.Timesteps}
	if f, follows := m.(dit.Follower); follows {
		n.follows, o.Timesteps = f, nil // it uses those of the model
	}
	o.Lanes = []dit.Range{{End: len(n.feeds)}}
	n.of = &session{
		id: s.id, lanes: s.lanes, model: m, open: o, env: s.env, act: s.act, comm: s.comm, comms: s.comms, stop: s.stop,
		pos: s.pos, controlNet: n,
	}
	for a := range n.of.comms {
		if a := plan.Axis(a); s.open.Plan.Pipe > 1 || a == plan.AxisPipe || a == plan.AxisSpread {
			n.of.comms[a] = comm.NewSilent(0, 1)
		}
	}
	return n
}

// take takes the memory of an entry of a net: for its strength, and for its outputs that blocks of this lane need.
func (s *session) take(n *net, e *controlled, own *sessionEntry) {
	own.modelSequence = s.size(&s.entries[e.entry])
	_, wide, _ := n.of.rows(whole(), own)
	e.rows = wide.Image
	width := s.model.Spec().Width
	e.gate = s.gate(e.Strength)
	e.outputs = make([]engine.Tensor, len(n.feeds))
	if n.follows != nil { // outputs are used one after the other, and share memory
		output := s.env.Arena.Alloc(s.env.DType, s.open.Batch, e.rows.Len(), width)
		for k := range e.outputs {
			if len(n.feeds[k]) > 0 {
				e.outputs[k] = output
			}
		}
		return
	}
	for k, blocks := range n.feeds {
		if s.open.Plan.Spread || slices.ContainsFunc(blocks, s.lane.held.Has) {
			e.outputs[k] = s.env.Arena.Alloc(s.env.DType, s.open.Batch, e.rows.Len(), width)
		}
	}
}

// imageOf returns the image rows of a net's entry where the model computes rows r. The model may have additional tokens
// after the picture's.
func (e *sessionEntry) imageOf(r dit.Rows) dit.Range {
	n := e.grid.Tokens()
	return dit.Range{Start: min(r.Image.Start, n), End: min(r.Image.End, n)}
}

// gate allocates a strength, [1, E], and fills it.
func (s *session) gate(strength float32) engine.Tensor {
	g := s.env.Arena.Alloc(engine.F32, 1, s.model.Spec().Width)
	if !s.env.Arena.Measuring() {
		s.env.Ops.Upload(g, slices.Repeat([]float32{strength}, g.Len()))
	}
	return g
}

// controls runs the nets of the entries that an evaluation asks for, and begins the runs of nets that follow.
func (s *session) controls(env dit.Env, c *EvaluateCommand, runs []*entryRun) error {
	if !env.Arena.Measuring() && c.Latents == nil {
		return nil
	}
	for _, n := range s.nets {
		own, measuring := EvaluateCommand{Index: c.Index, Timestep: c.Timestep, Whole: true}, env.Arena.Measuring()
		for k, e := range n.on {
			at := slices.Index(c.Entries, e.entry)
			if e.works = measuring || at >= 0 && c.Sigma <= e.Start && c.Sigma >= e.End; !e.works {
				continue
			}
			if n.follows != nil {
				base := runs[slices.IndexFunc(runs, func(r *entryRun) bool { return r.entry == e.entry })]
				e.run, e.next = n.of.begin(env, k, &own), 0
				n.follows.Follow(e.run.state, base.state)
				n.follows.Embed(env, e.run.state, engine.Tensor{})
				continue
			}
			var x []float32
			if !measuring {
				x = c.Latents[at]
			}
			own.Entries, own.Inputs = append(own.Entries, k), append(own.Inputs, x)
		}
		if n.follows != nil {
			continue
		}
		if err := n.run(env, &own); err != nil {
			return err
		}
	}
	return nil
}

// follow runs the blocks of nets that follow the model, up to the one that feeds block b, which is next.
func (s *session) follow(env dit.Env, run *entryRun, b int) {
	for _, n := range s.nets {
		last := slices.IndexFunc(n.feeds, func(blocks []int) bool { return slices.Contains(blocks, b) })
		if n.follows == nil || last < 0 {
			continue
		}
		layer(env, "control")
		env := n.of.reduced(env)
		for _, e := range n.on {
			if e.entry != run.entry || !e.works {
				continue
			}
			for ; e.next <= last; e.next++ {
				n.follows.Join(env, e.next, e.run.state, func() engine.Tensor { return run.wideImage(env, e.rows) })
				n.of.block(env, e.run, e.next)
			}
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

// reduced returns env with the all-reduce that products of s need; s may be the session of a net.
func (s *session) reduced(env dit.Env) dit.Env {
	tensor := s.comms[plan.AxisTensor]
	if env.Reduce = nil; tensor.Size() > 1 && !s.open.Plan.Scatter {
		env.Reduce = func(t engine.Tensor) { tensor.Run(comm.NewAllReduce(t)) }
	}
	return env
}

// run evaluates a net for some of its entries and leaves the outputs in controlled.outputs.
func (n *net) run(env dit.Env, c *EvaluateCommand) error {
	s := n.of
	env = s.reduced(env)
	mark := env.Arena.Mark()
	defer env.Arena.Release(mark)
	runs := make([]*entryRun, len(c.Entries))
	for k, i := range c.Entries {
		runs[k] = s.begin(env, i, c)
		input := s.upload(env, runs[k], c.Inputs[k])
		n.model.Embed(env, runs[k].state, input)
	}
	return s.blocks(env, s.lane.held, runs)
}

// fromNets adds the outputs of nets for block b to x: the image rows of a run, or the output of block b that a later
// block reads. In the session of a net it computes the output of the net's block b instead.
func (s *session) fromNets(env dit.Env, run *entryRun, b int, x engine.Tensor) {
	r := run.state.Rows.Image
	if r.Len() == 0 || x.IsZero() || s.controlNet == nil && len(s.nets) == 0 {
		return
	}
	layer(env, "control")
	if n := s.controlNet; n != nil {
		if e := n.on[run.entry]; !e.outputs[b].IsZero() {
			n.model.Output(env, b, run.state, e.outputs[b], e.gate)
		}
		return
	}
	for _, n := range s.nets {
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
}
