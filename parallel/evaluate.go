package parallel

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
)

// maxModulationRows bounds how many timesteps have their modulations computed ahead; the rest is computed when its evaluation comes.
const maxModulationRows = 128

// sessionNeed is the memory of a session in bytes.
type sessionNeed struct{ session, acts, comm int }

// measure runs a whole session on recording ops: every allocation of Prepare, Modulate, Embed, Block and Head, with no arithmetic.
func measure(model dit.Model, o OpenCommand, comms [axisCount]Comm) (sessionNeed, error) {
	rec := engine.NewRecorder()
	s := &rankSession{
		model: model, open: o, comms: silentLike(comms),
		env:  dit.Env{Ops: rec, Arena: engine.NewMeasuringArena("session")},
		act:  engine.NewMeasuringArena("activations"),
		comm: engine.NewMeasuringArena("communication"),
	}
	if err := s.prepare(); err != nil {
		return sessionNeed{}, err
	}
	ev := EvaluateCommand{Timestep: -1}
	for i, in := range o.Entries {
		if in.Foreign {
			continue
		}
		ev.Entries = append(ev.Entries, i)
		ev.Inputs = append(ev.Inputs, nil)
	}
	if _, err := s.evaluate(rec, ev); err != nil {
		return sessionNeed{}, err
	}
	return sessionNeed{session: s.env.Arena.Peak(), acts: s.act.Peak(), comm: s.comm.Peak()}, nil
}

// prepare computes what does not depend on the latent: text, and modulations for the timesteps announced.
func (s *rankSession) prepare() error {
	spec := s.model.Spec()
	held := dit.Range{End: len(spec.Blocks)}
	s.rowOf = map[float32]int{}
	var rows []float32
	for _, t := range s.open.Timesteps {
		if _, ok := s.rowOf[t]; !ok && len(rows) < maxModulationRows {
			s.rowOf[t] = len(rows)
			rows = append(rows, t)
		}
	}
	for i, in := range s.open.Entries {
		if in.Foreign {
			s.entries = append(s.entries, rankEntry{grid: in.Grid})
			continue
		}
		p, err := s.model.Prepare(s.env, []dit.Entry{in.Entry}, in.Grid, held)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		e := rankEntry{grid: in.Grid, p: p}
		if len(rows) > 0 {
			e.m = s.model.Modulate(s.env, p, rows, held)
		}
		s.entries = append(s.entries, e)
	}
	return nil
}

// evaluate runs the network for some entries. All entries go through a block before the next block, so weights are read once per evaluation.
func (s *rankSession) evaluate(ops engine.Ops, c EvaluateCommand) ([][]float32, error) {
	spec := s.model.Spec()
	env := s.env
	env.Ops, env.Arena = ops, s.act
	if tensor := s.comms[AxisTensor]; tensor.Size() > 1 {
		env.Reduce = tensor.AllReduce
	}
	mark := s.act.Mark()
	defer s.act.Release(mark)
	runs := make([]*entryRun, len(c.Entries))
	for k, i := range c.Entries {
		runs[k] = s.begin(env, &s.entries[i], c.Timestep, c.Inputs[k])
	}
	for b := range spec.Blocks {
		if s.stop != nil && s.stop.Load() {
			return nil, errStopped
		}
		for _, run := range runs {
			run.block(env, s.model, b)
		}
	}
	out := make([][]float32, len(runs))
	pending := make([]engine.Pending, len(runs))
	for k, run := range runs {
		y := env.Arena.Alloc(engine.F32, s.open.Batch, run.state.Rows.Image.Len(), spec.OutChannels*spec.PatchSize*spec.PatchSize)
		s.model.Head(env, run.state, y)
		if !env.Arena.Measuring() {
			out[k] = make([]float32, y.Len())
			pending[k] = ops.Download(out[k], y)
		}
	}
	for k := range pending {
		if err := pending[k].Wait(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// entryRun is one entry of one evaluation.
type entryRun struct {
	state  *dit.State
	attend func(dit.Attention)
	skips  map[int]engine.Tensor // block -> its output, kept for the block that takes it
	kept   map[int]bool          // blocks whose output is taken later
}

// begin embeds the latent of one entry.
func (s *rankSession) begin(env dit.Env, e *rankEntry, timestep float32, x []float32) *entryRun {
	spec := s.model.Spec()
	m, row, ok := e.m, 0, false
	if m != nil {
		row, ok = s.rowOf[timestep]
	}
	if !ok { // a timestep the sampler found on its way
		m, row = s.model.Modulate(env, e.p, []float32{timestep}, dit.Range{End: len(spec.Blocks)}), 0
	}
	lt := 0
	if spec.JointText() {
		lt = e.p.Lt
	}
	seq := newSequence(env.Ops, s.comm, s.comms[AxisUlysses], s.comms[AxisRing], lt, e.grid.Tokens())
	rows := seq.mine()
	run := &entryRun{
		state: dit.NewState(env, spec, e.p, m, row, s.open.Batch, rows), attend: seq.attend,
		skips: map[int]engine.Tensor{}, kept: map[int]bool{},
	}
	for _, b := range spec.Blocks {
		if b.Skip >= 0 {
			run.kept[b.Skip] = true
			run.skips[b.Skip] = env.Arena.Alloc(engine.F32, s.open.Batch, rows.Len(), spec.Width)
		}
	}
	in := env.Arena.Alloc(engine.F32, s.open.Batch, rows.Image.Len(), spec.Channels*spec.PatchSize*spec.PatchSize)
	if !env.Arena.Measuring() {
		env.Ops.Upload(in, x)
	}
	s.model.Embed(env, run.state, in)
	return run
}

// block runs block b and keeps its output if a later block skips to it.
func (r *entryRun) block(env dit.Env, model dit.Model, b int) {
	var skip engine.Tensor
	if from := model.Spec().Blocks[b].Skip; from >= 0 {
		skip = r.skips[from]
	}
	env.Attend = r.attend
	model.Block(env, b, r.state, skip)
	if r.kept[b] {
		env.Ops.Copy(r.skips[b], r.state.X)
	}
}
