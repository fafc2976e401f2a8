package ltx

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

const (
	eps       = 1e-6 // of the norms of rows
	headsEps  = 1e-5 // of those of queries and keys
	frameRate = 25   // ComfyUI's, without LTXVConditioning
)

// Model is an LTX model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare places the tokens and makes of the texts, in p.Source [n, Lt, E+A], what blocks attend to: the rows of the
// video beside those of the sound.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	p, err := layers.Begin(m.Spec(), entries, grid)
	if err != nil {
		return nil, err
	}
	first := &entries[0]
	for i := range entries {
		switch e := &entries[i]; {
		case !slices.Equal(e.Frames, first.Frames) || e.Frames != nil && len(e.Frames) != max(1, grid.T):
			return nil, fmt.Errorf("ltx: entry %d: timesteps of %d frames, want those of %d, the same in all entries", i,
				len(e.Frames), max(1, grid.T))
		case !slices.Equal(e.SoundRows, first.SoundRows) || e.SoundRows != nil && len(e.SoundRows) != grid.SoundY:
			return nil, fmt.Errorf("ltx: entry %d: timesteps of %d rows of sound, want those of %d, the same in all entries",
				i, len(e.SoundRows), grid.SoundY)
		case e.FrameRate != first.FrameRate || e.Connected != first.Connected || !e.SameKeyframes(first):
			return nil, fmt.Errorf("ltx: entry %d: another frame rate than the first one's, other keyframes, or another kind "+
				"of text", i)
		case e.SoundReference.Rows != first.SoundReference.Rows:
			return nil, fmt.Errorf("ltx: entry %d: %d rows of a reference sound, want %d as the first one has", i,
				e.SoundReference.Rows, first.SoundReference.Rows)
		case e.KeyframesOf() >= max(1, grid.T):
			return nil, fmt.Errorf("ltx: entry %d: %d frames that guide a video, the latent has %d", i, e.KeyframesOf(), grid.T)
		}
	}
	if grid.Sound > 0 && grid.SoundX != soundColumns {
		return nil, fmt.Errorf("ltx: sound of %d columns, want %d", grid.SoundX, soundColumns)
	}
	m.place(env, p)
	if n := first.SoundReference.Rows; n > 0 && grid.Sound > 0 {
		p.Sound = env.Arena.Alloc(env.DType, p.N, n, m.cfg.SoundFeatures)
		for i := range entries {
			env.Ops.Upload(p.Sound.Slice(0, i, i+1), entries[i].SoundReference.Data)
		}
	}
	p.CrossKV = make([]engine.Tensor, m.cfg.Depth)
	rows := first.Context.Rows
	if !first.Connected {
		rows = m.cfg.connected(rows)
	}
	p.Lt = rows
	p.Source = env.Arena.Alloc(engine.F32, p.N, rows, m.cfg.Hidden+m.cfg.Sound)
	mark := env.Arena.Mark()
	m.text(env, p)
	env.Arena.Release(mark)
	return p, nil
}

// connected returns how many rows the connectors make of n: they fill a text up with whole rounds of learned rows.
func (c *Config) connected(n int) int {
	r := c.Connectors.Registers
	return (max(textRows, n) + r - 1) / r * r
}

// PrepareBlock computes the keys and values of the text in block i, in front for the video, behind for the sound:
// CrossKV [n, Lt, 2, E+A]. Where the attention to the text is modulated, they depend on the timestep, and Block
// computes them.
func (m *Model) PrepareBlock(env dit.Env, p *dit.Prepared, i int) {
	if !m.Held.Has(i) || m.cfg.TextModulation {
		return
	}
	w, e := &m.Net.Blocks[i], m.cfg.Hidden
	kv := env.Arena.Alloc(env.DType, p.N, p.Lt, 2, e+m.cfg.Sound)
	p.CrossKV[i] = kv
	mark := env.Arena.Mark()
	keysAndValues(env, kv.Slice(3, 0, e), p.Source.Slice(2, 0, e), &w.Text)
	keysAndValues(env, kv.Slice(3, e, e+m.cfg.Sound), p.Source.Slice(2, e, e+m.cfg.Sound), &w.SoundText)
	env.Arena.Release(mark)
}

// keysAndValues writes those of the rows x [n, L, C] to kv [n, L, 2, I].
func keysAndValues(env dit.Env, kv, x engine.Tensor, w *attention) {
	mark := env.Arena.Mark()
	rows := layers.Scratch(env, x, x.Dim(0), x.Dim(1), w.K.N())
	env.Ops.Linear(rows, x, w.K, engine.Epilogue{})
	env.Ops.RMSNorm(rows, rows, w.Key, headsEps)
	env.Ops.Copy(kv.Index(2, 0), rows)
	env.Ops.Linear(rows, x, w.V, engine.Epilogue{})
	env.Ops.Copy(kv.Index(2, 1), rows)
	env.Arena.Release(mark)
}

// side is what the two streams of a model have of a kind each, by which code for both is written once.
type side struct {
	e          int // width
	at         int // of its columns in modulations that both streams share
	heads, d   int // of its attention to itself and to the text
	parts      []float32
	time, gate *stepper
	cross      *stepper
	prompt     *stepper // nil: the attention to the text is not modulated
	head       engine.Tensor
}

func (m *Model) sides(e *dit.Entry) (video, sound side) {
	n, c := m.Net, &m.cfg
	video = side{
		e: c.Hidden, heads: c.Heads, d: c.Hidden / c.Heads, parts: e.Frames, time: &n.Time, gate: &n.Gate, cross: &n.Cross,
		head: n.Head,
	}
	sound = side{
		e: c.Sound, at: c.Hidden, heads: c.SoundHeads, d: c.Sound / c.SoundHeads, parts: e.SoundRows, time: &n.SoundTime,
		gate: &n.SoundGate, cross: &n.SoundCross, head: n.SoundHead,
	}
	if n.Prompt != nil {
		video.prompt, sound.prompt = &n.Prompt.Video, &n.Prompt.Sound
	}
	return video, sound
}

// most returns the largest part of the timestep that tokens of a stream have.
func (s *side) most() float32 {
	if len(s.parts) == 0 {
		return 1
	}
	return slices.Max(s.parts)
}

// Chunks of a stream's modulation in a block, of its width each: those of its table, and behind them at behind() and on
// those of its attention to the other stream and of the text, in the order of their tables.
const (
	selfShift, selfScale, selfGate = 0, 1, 2
	mlpShift, mlpScale, mlpGate    = 3, 4, 5
	textShift, textScale, textGate = 6, 7, 8

	fromSoundScale, fromSoundShift = 0, 1
	fromVideoScale, fromVideoShift = 2, 3
	crossGate                      = 4
	promptShift, promptScale       = 5, 6
)

// wide returns how many chunks a stream's modulation has.
func (c *Config) wide() int {
	if c.TextModulation {
		return c.chunks() + 7
	}
	return c.chunks() + 5
}

// Modulate computes what all blocks add their tables to: Vector [S, N, wide*(E+A)], first that of the video, and Head
// [S, N, 2*(E+A)]. N is n times the number of different parts of the timestep that tokens have, and the entries of one
// part follow one another.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	out, s, parts := dit.NewModulation(m.Spec()), len(timesteps)/p.N, parts(&p.Entries[0])
	n, k := p.N*len(parts), m.cfg.wide()
	out.Vector = env.Arena.Alloc(engine.F32, s, n, k*(m.cfg.Hidden+m.cfg.Sound))
	video, sound := m.sides(&p.Entries[0])
	if !video.head.IsZero() {
		out.Head = env.Arena.Alloc(engine.F32, s, n, 2*(m.cfg.Hidden+m.cfg.Sound))
	}
	scale := float32(m.cfg.TimeScale)
	own := make([]float32, 0, s*n) // of every part of every entry
	for at := 0; at < len(timesteps); at += p.N {
		for _, part := range parts {
			for _, t := range timesteps[at : at+p.N] {
				own = append(own, t*part*scale)
			}
		}
	}
	// of tokens alike: the largest timestep of an entry, or of all
	alike := func(most float32, all bool) []float32 {
		out := make([]float32, 0, s*n)
		for at := 0; at < len(timesteps); at += p.N {
			for range parts {
				for _, t := range timesteps[at : at+p.N] {
					if all {
						t = slices.Max(timesteps[at : at+p.N])
					}
					out = append(out, t*most*scale)
				}
			}
		}
		return out
	}
	for i, of := range []*side{&video, &sound} {
		other := []*side{&sound, &video}[i]
		to := func(from, chunks int) engine.Tensor {
			lo := k*of.at + from*of.e
			return out.Vector.Slice(2, lo, lo+chunks*of.e)
		}
		gates := alike(other.most(), true)
		for j := range gates {
			gates[j] *= float32(m.cfg.GateScale / m.cfg.TimeScale)
		}
		table := m.cfg.chunks()
		head := engine.Tensor{}
		if !of.head.IsZero() {
			head = out.Head.Slice(2, 2*of.at, 2*(of.at+of.e))
		}
		step(env, to(0, table), own, of.time, head, of.head)
		step(env, to(table, 4), own, of.cross, engine.Tensor{}, engine.Tensor{})
		step(env, to(table+crossGate, 1), gates, of.gate, engine.Tensor{}, engine.Tensor{})
		if of.prompt != nil {
			step(env, to(table+promptShift, 2), alike(of.most(), false), of.prompt, engine.Tensor{}, engine.Tensor{})
		}
	}
	return out
}

// step computes the chunks y [S, N, k*E] of timesteps [S*N], and the modulation head [S, N, 2E] of the last layer, if
// it is there: its table [2, E] plus the embedding of the timestep.
func step(env dit.Env, y engine.Tensor, timesteps []float32, w *stepper, head, table engine.Tensor) {
	mark, e := env.Arena.Mark(), w.Out.N()
	vector := env.Arena.Alloc(engine.F32, y.Dim(0), y.Dim(1), e)
	features := layers.Upload(env, layers.TimestepFeatures(timesteps, w.In.K()), y.Dim(0), y.Dim(1), w.In.K())
	layers.MLP(env, vector, features, w.In, w.Out, engine.SiLU)
	for i := 0; i < 2 && !head.IsZero(); i++ {
		env.Ops.Add(head.Slice(2, i*e, (i+1)*e), vector, table.Slice(0, i, i+1).Unsqueeze(0))
	}
	env.Ops.Activate(vector, vector, engine.SiLU)
	env.Ops.Linear(y, vector, w.Chunks, engine.Epilogue{})
	env.Arena.Release(mark)
}

// parts returns the different parts of the timestep that tokens of an entry have.
func parts(e *dit.Entry) []float32 {
	out := slices.Concat(e.Frames, e.SoundRows)
	if e.Frames == nil || e.SoundRows == nil {
		out = append(out, 1)
	}
	if e.SoundReference.Rows > 0 {
		out = append(out, 0)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ModulateBlock adds the tables of block i to what all blocks share, and 1 to the scales of norms.
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	w, k := &m.Net.Blocks[i], m.cfg.wide()
	tables := [2][]engine.Tensor{{w.Table, w.Cross}, {w.SoundTable, w.SoundCross}}
	if w.Prompt != nil {
		tables[0], tables[1] = append(tables[0], w.Prompt.Video), append(tables[1], w.Prompt.Sound)
	}
	for j, e := range []int{m.cfg.Hidden, m.cfg.Sound} {
		shared := out.Vector.Slice(2, j*k*m.cfg.Hidden, k*(m.cfg.Hidden+j*e))
		mod := env.Arena.Alloc(engine.F32, shared.Shape()...)
		at := 0
		for _, t := range tables[j] {
			to := at + t.Dim(0)*e
			env.Ops.Add(mod.Slice(2, at, to), shared.Slice(2, at, to), t.Merge(0).Unsqueeze(0).Unsqueeze(0))
			at = to
		}
		mark := env.Arena.Mark()
		one, b := env.Arena.Alloc(engine.F32, 1, 1, e), m.cfg.chunks()
		env.Ops.Fill(one, 1)
		scales := []int{selfScale, mlpScale, b + fromSoundScale, b + fromVideoScale}
		if m.cfg.TextModulation {
			scales = append(scales, textScale)
		}
		for _, c := range scales {
			env.Ops.Add(mod.Slice(2, c*e, (c+1)*e), mod.Slice(2, c*e, (c+1)*e), one)
		}
		env.Arena.Release(mark)
		*[]*engine.Tensor{&out.Image[i], &out.Text[i]}[j] = mod
	}
}
