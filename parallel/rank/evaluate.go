package rank

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// measure runs a whole session on recording Ops: every allocation of Prepare, Modulate, Embed, Block and Head, without
// arithmetic. It returns the bytes that each buffer needs, and the calls.
func (r *Rank) measure(model dit.Model, o OpenCommand) (need map[*Buffer]int, calls *engine.Recorder, err error) {
	rec := engine.NewRecorder()
	s := &session{
		model: model, open: o, replies: map[string][]engine.Tensor{}, comms: silentLike(r.comms), lanes: NewLaneStore(),
		resident: r.weights,
		env:      dit.Env{Ops: rec, Arena: engine.NewMeasuringArena("session"), DType: o.DType},
		act:      engine.NewMeasuringArena("activations"),
		comm:     engine.NewMeasuringArena("communication"),
	}
	if err := s.prepare(); err != nil {
		return nil, nil, err
	}
	ev := EvaluateCommand{Timestep: -1, Whole: true}
	for i, in := range o.Entries {
		if in.Foreign {
			continue
		}
		ev.Entries = append(ev.Entries, i)
		ev.Inputs = append(ev.Inputs, nil)
	}
	if !o.Plan.Spread || !s.lane.up {
		if _, err := s.evaluate(rec, ev); err != nil {
			return nil, nil, err
		}
	}
	if o.Plan.PatchesMayTakeMore(model.Spec()) && len(ev.Entries) > 0 {
		for m, tokens := range plan.PatchRanges(o.Text, o.Entries[0].Grid, o.Plan.Patches) {
			ev.Whole, ev.Patch, ev.Tokens, ev.Text = false, m, tokens, m == 0
			if _, err := s.evaluate(rec, ev); err != nil {
				return nil, nil, err
			}
		}
	}
	return map[*Buffer]int{&r.session: s.env.Arena.Peak(), &r.acts: s.act.Peak(), &r.exchange: s.comm.Peak()}, rec, nil
}

// silentLike returns recording ends with the ranks and sizes of real ones.
func silentLike(ends [plan.AxisCount]comm.Comm) (out [plan.AxisCount]comm.Comm) {
	for a, c := range ends {
		out[a] = comm.NewSilent(c.Rank(), c.Size())
	}
	return out
}

// prepare computes what does not depend on the latent: text, and modulations for the expected timesteps.
func (s *session) prepare() error {
	spec, split := s.model.Spec(), s.open.Plan
	s.lane = newLane(s.open.Lanes, split.Pipe, s.comms[plan.AxisPipe].Rank(), len(spec.Blocks))
	s.rowOf = map[float32]int{}
	var rows []float32
	for _, t := range s.open.Timesteps {
		if _, ok := s.rowOf[t]; !ok && len(rows) < plan.ModulationRows {
			s.rowOf[t] = len(rows)
			rows = append(rows, t)
		}
	}
	n := len(spec.Blocks)
	s.weights.use(n, s.lane.held.Start)
	for i, in := range s.open.Entries {
		layer(s.env, "text")
		if in.Foreign {
			s.entries = append(s.entries, sessionEntry{grid: in.Grid})
			continue
		}
		p, err := s.model.Prepare(s.env, in.Entries, in.Grid)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		e := sessionEntry{grid: in.Grid, p: p}
		layer(s.env, "modulation")
		if len(rows) > 0 {
			e.m = s.model.Modulate(s.env, p, forEach(p, rows))
		}
		e.attention = newAttention(split, s.lane, s.lanes, entryKey{s.id, i})
		keys := e.attention.Reserve(s.env, s.extent(&e))
		s.keepSkips(i, &e)
		e.bias = s.biases(&e, keys)
		s.entries = append(s.entries, e)
	}
	s.prepareBlocks()
	if err := s.prepareNets(); err != nil {
		return err
	}
	var values []int
	if split.Pipe > 1 && split.Patches > 1 && split.Overlap && len(s.entries) > 0 {
		values = s.largestPatch()
	}
	s.link = newStageExchange(s.comms[plan.AxisPipe], s.comm, s.env.DType, values)
	return nil
}

// forEach repeats each timestep once per entry, as Modulate takes them.
func forEach(p *dit.Prepared, timesteps []float32) (out []float32) {
	for _, t := range timesteps {
		out = append(out, slices.Repeat([]float32{t}, p.N)...)
	}
	return out
}

// prepareBlocks prepares all entries block by block, because weights in parts are gathered block by block.
func (s *session) prepareBlocks() {
	blocks := s.prepared()
	for b := blocks.Start; b < blocks.End; b++ {
		s.weights.use(b, b+1)
		for _, e := range s.entries {
			if e.p == nil {
				continue
			}
			layer(s.env, "text")
			s.model.PrepareBlock(s.env, e.p, b)
			if e.m != nil {
				layer(s.env, "modulation")
				s.model.ModulateBlock(s.env, e.m, b)
			}
		}
	}
}

// keepSkips takes memory for block outputs that later blocks read. For blocks of this lane that is the rows of this
// rank or, in a pipeline, whose patches are cut differently, all rows. Spread evaluations also need the rows of this
// rank for all other blocks.
func (s *session) keepSkips(entry int, e *sessionEntry) {
	if s.controlNet != nil { // nets have no such blocks
		return
	}
	spec, tokens, spread := s.model.Spec(), e.grid.Tokens(), s.spreadRows(e)
	if plan.Skips(spec) && !s.lane.up && s.open.Plan.Spread {
		e.skips = map[int]engine.Tensor{}
	}
	if s.open.Plan.Pipe == 1 {
		_, _, own := s.rows(whole(), e)
		tokens = own.Image.Len()
	}
	for _, b := range spec.Blocks {
		if b.Skip >= 0 && s.lane.held.Has(b.Skip) {
			output := s.env.Arena.Alloc(s.env.DType, s.open.Batch, tokens, spec.Width)
			s.lanes.put(skipKey{entryKey{s.id, entry}, b.Skip}, output)
			if e.skips != nil {
				e.skips[b.Skip] = output.Slice(1, spread.Start, spread.End)
			}
		} else if b.Skip >= 0 && e.skips != nil {
			e.skips[b.Skip] = s.env.Arena.Alloc(s.env.DType, s.open.Batch, spread.Len(), spec.Width)
		}
	}
}

// extent returns what this rank attends to of an entry.
func (s *session) extent(e *sessionEntry) extent {
	out := extent{spec: s.model.Spec(), size: s.size(e), batch: s.open.Batch, heads: s.heads()}
	for b := s.lane.held.Start; b < s.lane.held.End; b++ {
		out.blocks = append(out.blocks, b)
	}
	out.ranks, _, _ = s.rows(whole(), e)
	return out
}

// textOf returns how many text tokens of an entry go through the blocks.
func (s *session) textOf(p *dit.Prepared) int {
	if s.model.Spec().JointText() {
		return p.Lt
	}
	return 0
}

// heads returns how many heads of keys and values this rank attends with.
func (s *session) heads() int {
	tensor, ulysses := s.comms[plan.AxisTensor], s.comms[plan.AxisUlysses]
	local := dit.Held{Rank: tensor.Rank(), Ranks: tensor.Size()}.Share(s.model.Spec().Groups()).Len()
	return s.open.Plan.GroupHeads(local)[ulysses.Rank()].Len()
}

// evaluate issues this rank's stage of the network for some entries. Each block runs for all entries before the next
// block, so that weights are read once per evaluation. outputs waits for the predictions; nil on stages that have none.
func (s *session) evaluate(ops engine.Ops, c EvaluateCommand) (outputs func() ([]dit.Floats, error), err error) {
	env := s.reduced(s.env)
	env.Ops, env.Arena = ops, s.act
	s.tokens.MicroSteps++
	mark := s.act.Mark()
	defer s.act.Release(mark)
	s.pos.start(plan.Micro{Evaluation: c.Index, Patch: c.Patch, Whole: c.Whole})
	pipe, held := s.comms[plan.AxisPipe], s.lane.held
	first, last := pipe.Rank() == 0, pipe.Rank() == pipe.Size()-1
	if s.spreads(&c) {
		held, first, last = s.prepared(), true, true
	}
	runs, rows := make([]*entryRun, len(c.Entries)), make([]engine.Tensor, len(c.Entries))
	ends := len(s.model.Spec().Blocks)
	s.weights.use(ends, s.lane.held.Start)
	for k, i := range c.Entries {
		runs[k] = s.begin(env, i, &c)
		rows[k] = runs[k].state.X
		if first {
			var x []float32
			if k < len(c.Inputs) {
				x = c.Inputs[k]
			}
			runs[k].input = s.upload(env, runs[k], x)
		}
	}
	if !first {
		s.pos.at("rows of stage %d", pipe.Rank()-1)
		s.link.receive(c.Whole, c.Entries, rows)
	}
	var predictions []engine.Tensor
	if err := s.controls(env, &c, runs); err != nil {
		return nil, err
	}
	err = s.replayOrIssue(env.Ops, &c, runs, held.Len(), &predictions, func() error {
		for _, run := range runs {
			if first {
				layer(env, "embed")
				s.model.Embed(env, run.state, run.input)
			}
		}
		if err := s.blocks(env, held, runs); err != nil || !last {
			return err
		}
		s.weights.use(ends, s.lane.held.Start)
		predictions = s.head(env, runs)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.pos.at("after block %d", held.End-1)
	if !last {
		s.link.send(c.Whole, c.Entries, rows)
		return nil, nil
	}
	return s.download(env, predictions), nil
}

// stopped reports whether the session must not begin another block.
func (s *session) stopped() bool { return s.stop != nil && s.stop() }

// blocks issues the blocks of a stage.
func (s *session) blocks(env dit.Env, held dit.Range, runs []*entryRun) error {
	for b := held.Start; b < held.End; b++ {
		s.pos.block(b)
		if s.stopped() {
			s.pos.count(-1)
			return errStopped
		}
		s.lookAhead()
		s.weights.use(b, b+1)
		for _, run := range runs {
			s.block(env, run, b)
		}
	}
	return nil
}

// replayOrIssue has a device that can (engine.Replayer) replay what it issued for the same entries and tokens, or else
// issues the calls of f. From one evaluation to the next only two things change: the input, which has been uploaded,
// and the row of the modulations, which is copied to a fixed place. Exchanges between the calls are repeated. Sessions
// with control nets or with weights that are gathered block by block change more, and are not replayed. f sets
// predictions.
func (s *session) replayOrIssue(ops engine.Ops, c *EvaluateCommand, runs []*entryRun, blocks int,
	predictions *[]engine.Tensor, f func() error,
) error {
	device, ok := ops.(engine.Replayer)
	ok = ok && len(s.nets) == 0 && s.weights == nil && !(c.Whole && s.open.Plan.Patches > 1) // few: the warm-up
	var moving []engine.Tensor
	for _, run := range runs {
		if ok = ok && !run.fresh && len(s.open.Entries[run.entry].Residuals) == 0; ok {
			moving = append(moving, run.state.M.Rows(run.state.Step)...)
		}
	}
	if !ok {
		return f()
	}
	if s.stopped() {
		return errStopped
	}
	s.lookAhead() // in f it would be recorded
	key := fmt.Sprint(s.id, c.Entries, c.Whole, c.Tokens, c.Text)
	replayed, err := device.Replay(key, moving, func(fixed []engine.Tensor) error {
		for _, run := range runs {
			n := len(run.state.M.Rows(run.state.Step))
			run.state.M, run.state.Step, fixed = run.state.M.OfRows(fixed[:n]), 0, fixed[n:]
		}
		s.fixed = true
		err := f()
		s.fixed, s.replies[key] = false, *predictions
		return err
	})
	if replayed {
		*predictions = s.replies[key]
		s.pos.count(int64(blocks))
	}
	return err
}

// head issues the head of every entry.
func (s *session) head(env dit.Env, runs []*entryRun) (out []engine.Tensor) {
	spec := s.model.Spec()
	layer(env, "head")
	for _, run := range runs {
		y := env.Arena.Alloc(env.DType, s.open.Batch, run.state.Rows.Image.Len(),
			spec.OutChannels*spec.PatchSize*spec.PatchSize)
		s.model.Head(env, run.state, y)
		out = append(out, y)
	}
	return out
}

// download issues the copies of the predictions to the host, for which outputs waits.
func (s *session) download(env dit.Env, predictions []engine.Tensor) (outputs func() ([]dit.Floats, error)) {
	out, pending := make([]dit.Floats, len(predictions)), make([]engine.Pending, len(predictions))
	for k, y := range predictions {
		if !env.Arena.Measuring() {
			out[k] = make([]float32, y.Len())
			pending[k] = env.Ops.Download(out[k], y)
		}
	}
	return func() ([]dit.Floats, error) {
		for _, p := range pending {
			if err := p.Wait(); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
}

// entryRun is one entry of one evaluation.
type entryRun struct {
	entry  int
	state  *dit.State
	input  engine.Tensor // rows of the latent [B, L/P, C*p*p], on the first stage
	attend func(dit.Attention)
	// skips has the kept outputs of blocks in a spread evaluation; nil: they are in the store of the stage
	skips map[int]engine.Tensor
	fresh bool // modulations of blocks were not computed ahead
	// scattered moves rows between tensor ranks; nil: each of them keeps all rows
	scattered *scattered
}

// begin makes the state of one entry for the rows of this rank.
func (s *session) begin(env dit.Env, entry int, c *EvaluateCommand) *entryRun {
	spec, e := s.model.Spec(), &s.entries[entry]
	m, row, ok := e.m, 0, false
	if m != nil {
		row, ok = s.rowOf[c.Timestep]
	}
	layer(env, "modulation")
	if !ok { // a timestep that was not expected
		m, row = s.model.Modulate(env, e.p, forEach(e.p, []float32{c.Timestep})), 0
	}
	all, wide, rows := s.rows(c, e)
	seq := &sequence{
		ops: env.Ops, arena: s.comm, ulysses: s.comms[plan.AxisUlysses], ring: s.outer(c), rows: all, whole: c.Whole,
		plan: s.open.Plan, bias: e.bias,
	}
	run := &entryRun{
		entry: entry, state: dit.NewState(env, spec, e.p, m, row, s.open.Batch, rows, wide),
		attend: seq.hook(e.attention), fresh: !ok,
	}
	if s.open.Plan.Scatter {
		run.scattered = newScattered(s.open.Plan, s.comms[plan.AxisTensor], wide)
	}
	if s.spreads(c) {
		run.skips = e.skips
	}
	s.tokens.Text += int64(rows.Text.Len() * s.open.Batch)
	s.tokens.Image += int64(rows.Image.Len() * s.open.Batch)
	return run
}

// upload copies the rows of the latent to the device.
func (s *session) upload(env dit.Env, run *entryRun, x []float32) engine.Tensor {
	spec := s.model.Spec()
	in := env.Arena.Alloc(env.DType, s.open.Batch, run.state.Rows.Image.Len(), spec.Channels*spec.PatchSize*spec.PatchSize)
	layer(env, "embed")
	if !env.Arena.Measuring() {
		env.Ops.Upload(in, x)
	}
	return in
}

// block runs block b of one entry and keeps its output if a later block reads it.
func (s *session) block(env dit.Env, run *entryRun, b int) {
	output := func(block int) engine.Tensor {
		if run.skips != nil || s.controlNet != nil { // blocks of nets have no skip inputs
			return run.skips[block]
		}
		t := s.lanes.output(skipKey{entryKey{s.id, run.entry}, block})
		if t.IsZero() || s.open.Plan.Pipe == 1 {
			return t
		}
		r := run.state.Rows.Image
		return t.Slice(1, r.Start, r.End)
	}
	var skip engine.Tensor
	if from := s.model.Spec().Blocks[b].Skip; from >= 0 {
		skip = output(from)
		if env.Arena.Measuring() && skip.IsZero() {
			skip = run.state.X // as large as that of the other lane
		}
	}
	s.follow(env, run, b)
	mark := env.Arena.Mark()
	if run.fresh {
		layer(env, "modulation")
		s.model.ModulateBlock(env, run.state.M, b)
	}
	layer(env, "qkv")
	env.Attend = func(a dit.Attention) {
		run.attend(a)
		layer(env, "mlp")
	}
	if run.scattered != nil {
		env.Gather, env.Scatter = run.scattered.gather, run.scattered.scatter
	}
	s.model.Block(env, b, run.state, skip)
	env.Arena.Release(mark)
	s.patch(env, run, b)
	s.residuals(env, run, b)
	to := output(b)
	if !to.IsZero() {
		env.Ops.Copy(to, run.state.X)
	}
	if !plan.Skips(s.model.Spec()) || s.controlNet != nil {
		to = run.state.ImageRows()
	}
	s.fromNets(env, run, b, to)
}
