package rank

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// Need is what a session takes of a rank.
type Need struct {
	Session, Activations, Exchange int // bytes of each buffer
	Calls                          *engine.Recorder
}

// Total returns the bytes of all buffers.
func (n *Need) Total() int64 { return int64(n.Session) + int64(n.Activations) + int64(n.Exchange) }

// Measure runs a whole session of a rank with these ends on recording Ops: every allocation of Prepare, Modulate,
// Embed, Block and Head, without arithmetic. Of the model it needs shapes alone (dit.Spec.Outline), of ends their ranks
// and sizes. resident finds control nets by key. Errors are those of Prepare.
func Measure(model dit.Model, o OpenCommand, ends [plan.AxisCount]comm.Comm,
	resident func(key string) (dit.Model, bool),
) (Need, error) {
	rec := engine.NewRecorder()
	s := &session{
		network: network{
			model: model, open: o, comms: silentLike(ends), lanes: NewLaneStore(),
			memory: memory{
				env:  dit.Env{Ops: rec, Arena: engine.NewMeasuringArena("session"), DType: o.DType},
				act:  engine.NewMeasuringArena("activations"),
				comm: engine.NewMeasuringArena("communication"),
			},
		},
		control: control{resident: resident},
	}
	if err := s.prepare(); err != nil {
		return Need{}, err
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
			return Need{}, err
		}
	}
	if o.Plan.PatchesMayTakeMore(model.Spec()) && len(ev.Entries) > 0 {
		for m, tokens := range plan.PatchRanges(o.Text, o.Entries[0].Grid, o.Plan.Patches) {
			ev.Whole, ev.Patch, ev.Tokens, ev.Text = false, m, tokens, m == 0
			if _, err := s.evaluate(rec, ev); err != nil {
				return Need{}, err
			}
		}
	}
	return Need{s.env.Arena.Peak(), s.act.Peak(), s.comm.Peak(), rec}, nil
}

// silentLike returns recording ends with the ranks and sizes of real ones.
func silentLike(ends [plan.AxisCount]comm.Comm) (out [plan.AxisCount]comm.Comm) {
	for a, c := range ends {
		out[a] = comm.NewSilent(c.Rank(), c.Size())
	}
	return out
}

// evaluate issues this rank's stage of the network for some entries. Each block runs for all entries before the next
// block, so that weights are read once per evaluation. outputs waits for the predictions; nil on stages that have none.
func (s *session) evaluate(ops engine.Ops, c EvaluateCommand) (outputs func() ([]dit.Floats, error), err error) {
	env := s.reduced(s.env)
	env.Ops, env.Arena = ops, s.act
	s.usage.tokens.MicroSteps++
	mark := s.act.Mark()
	defer s.act.Release(mark)
	s.pos.start(plan.Micro{Evaluation: c.Index, Patch: c.Patch, Whole: c.Whole})
	pass := s.pass(&c)
	runs, rows := make([]*entryRun, len(c.Entries)), make([]engine.Tensor, len(c.Entries))
	var alike []engine.Tensor // rows that all ranks of the sequence have; no patch of a pipeline has any
	ends := len(s.model.Spec().Blocks)
	if err := s.weights.use(ends); err != nil {
		return nil, err
	}
	for k, i := range c.Entries {
		runs[k] = s.begin(env, i, &c)
		s.usage.count(runs[k].state.Rows, s.open.Batch)
		rows[k] = runs[k].state.X
		if x := runs[k].state.Sound; !x.IsZero() {
			alike = append(alike, x)
		}
		if pass.first {
			var x []float32
			if k < len(c.Inputs) {
				x = c.Inputs[k]
			}
			runs[k].input = s.upload(env, runs[k], x)
		}
	}
	if !pass.first {
		s.pos.at("rows of stage %d", s.comms[plan.AxisPipe].Rank()-1)
		s.stages.receive(c.Whole, c.Entries, append(rows, alike...))
	}
	var predictions []engine.Tensor
	if err := s.control.begin(env, &c, runs); err != nil {
		return nil, err
	}
	err = s.replayOrIssue(env.Ops, &c, runs, pass.blocks.Len(), &predictions, func() error {
		for _, run := range runs {
			if pass.first {
				layer(env, "embed")
				s.model.Embed(env, run.state, run.input)
			}
		}
		if err := s.stage(env, pass.blocks, runs); err != nil || !pass.last {
			return err
		}
		err := s.weights.use(ends)
		if err == nil {
			predictions = s.head(env, runs)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.pos.at("after block %d", pass.blocks.End-1)
	if !pass.last {
		s.stages.send(c.Whole, c.Entries, append(rows, alike...))
		return nil, nil
	}
	return s.download(env, predictions), nil
}

func (s *session) stage(env dit.Env, blocks dit.Range, runs []*entryRun) error {
	return s.blocks(blocks, func(b int) error {
		s.lookAhead()
		if err := s.weights.use(b); err != nil {
			return err
		}
		for _, run := range runs {
			s.block(env, run, b)
		}
		return nil
	})
}

// replayOrIssue has a device that can (engine.Replayer) replay what it issued for the same entries and tokens, or else
// issues the calls of f, which sets predictions. Sessions with control nets or with weights that are brought block by
// block change more than a replay does, and are not replayed.
func (s *session) replayOrIssue(ops engine.Ops, c *EvaluateCommand, runs []*entryRun, blocks int,
	predictions *[]engine.Tensor, f func() error,
) error {
	device, ok := ops.(engine.Replayer)
	ok = ok && len(s.control.nets) == 0 && s.weights == nil && !(c.Whole && s.open.Plan.Patches > 1) // few: the warm-up
	for _, run := range runs {
		ok = ok && !run.fresh && len(s.open.Entries[run.entry].Residuals) == 0
	}
	if !ok {
		return f()
	}
	if s.stopped() {
		return errStopped
	}
	s.lookAhead() // in f it would be recorded
	replayed, err := s.replays.replay(device, fmt.Sprint(s.id, c.Entries, c.Whole, c.Tokens, c.Text), runs, predictions, f)
	if replayed {
		s.pos.count(int64(blocks))
	}
	return err
}

// head issues the head of every entry.
func (s *session) head(env dit.Env, runs []*entryRun) (out []engine.Tensor) {
	spec := s.model.Spec()
	layer(env, "head")
	for _, run := range runs {
		y := env.Arena.Alloc(env.DType, s.open.Batch, s.ends(run), spec.FeaturesOut())
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

// block runs block b of one entry, with what control adds to it, and keeps its output if a later block reads it.
func (s *session) block(env dit.Env, run *entryRun, b int) {
	var skip engine.Tensor
	if from := s.model.Spec().Blocks[b].Skip; from >= 0 {
		skip = s.skips.output(&s.network, run, from)
		if env.Arena.Measuring() && skip.IsZero() {
			skip = run.state.X // as large as that of the other lane
		}
	}
	s.control.before(env, run, b)
	s.network.block(env, run, b, skip)
	s.control.patch(env, run, b)
	s.residuals(env, run, b)
	to := s.skips.output(&s.network, run, b)
	if !to.IsZero() {
		env.Ops.Copy(to, run.state.X)
	}
	if !plan.Skips(s.model.Spec()) {
		to = run.state.ImageRows()
	}
	s.control.add(env, run, b, to)
}
