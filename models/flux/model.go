package flux

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
	"patchbay/models/weights"
)

// eps is the epsilon of all norms of FLUX.
const eps = 1e-6

// Model is a FLUX model or a part of one. It implements dit.Model.
type Model struct {
	cfg  Config
	spec dit.Spec
	held dit.Held
	net  *net
	mem  *weights.Loaded
	// shards is nil where all bytes of the held weights are here
	shards *dit.Shards
}

// Load reads the held part of a model of config c from set (names with or without the prefix of full checkpoints) and
// packs it with ops. Missing, unexpected and misshapen tensors of the whole model are reported in one
// *weights.MismatchError.
func Load(ops engine.Ops, set *weights.Set, c Config, held dit.Held) (*Model, error) {
	spec, err := c.Spec()
	if err != nil {
		return nil, err
	}
	_, _, set = weights.Looks(set)
	m := &Model{cfg: c, spec: spec, held: held, net: newNet(c)}
	if m.mem, err = weights.Load(ops, set, m.net, c.options(held)); err != nil {
		return nil, err
	}
	m.shards = m.mem.Shards()
	return m, nil
}

// Spec describes the whole model.
func (m *Model) Spec() *dit.Spec { return &m.spec }

// Shards tells how weights are brought together that were loaded in parts.
func (m *Model) Shards() *dit.Shards { return m.shards }

// Close gives the memory of the weights back.
func (m *Model) Close() { m.mem.Close() }

// Prepare embeds the text, and the part of the conditioning vector that does not depend on the timestep: pooled text
// and guidance.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid, _ dit.Range) (*dit.Prepared, error) {
	if err := layers.CheckEntries(&m.spec, entries); err != nil {
		return nil, err
	}
	n, lt, e := len(entries), entries[0].Context.Rows, m.cfg.Hidden
	p := &dit.Prepared{N: n, Lt: lt, Grid: grid, Entries: entries}
	if !m.held.NoEmbed {
		p.Text = env.Arena.Alloc(env.DType, n, lt, e)
	}
	p.Vector = env.Arena.Alloc(engine.F32, n, e)
	p.RoPE = layers.AxisRotation(m.cfg.Axes, m.cfg.Theta, lt, grid).Upload(env)
	mark := env.Arena.Mark()
	if !m.held.NoEmbed {
		context := layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context })
		layers.Project(env, p.Text, context, m.net.TxtIn)
	}
	layers.MLP(env, p.Vector, layers.Pooled(env, entries, m.cfg.VectorDim), m.net.Vector.In, m.net.Vector.Out, engine.SiLU)
	if m.net.Guidance != nil {
		m.addGuidance(env, p)
	}
	env.Arena.Release(mark)
	return p, nil
}

// PrepareBlock adds nothing: blocks of joint attention need nothing of the entries alone.
func (m *Model) PrepareBlock(dit.Env, *dit.Prepared, int) {}

// addGuidance adds the guidance embedding to the vectors of the entries that have a guidance.
func (m *Model) addGuidance(env dit.Env, p *dit.Prepared) {
	for i, entry := range p.Entries {
		if entry.Guidance == nil {
			continue
		}
		t := []float32{*entry.Guidance * float32(m.cfg.TimeFactor)}
		f := layers.Upload(env, layers.TimestepFeatures(t, features), 1, features)
		g := env.Arena.Alloc(engine.F32, 1, m.cfg.Hidden)
		layers.MLP(env, g, f, m.net.Guidance.In, m.net.Guidance.Out, engine.SiLU)
		row := p.Vector.Slice(0, i, i+1)
		env.Ops.Add(row, row, g)
	}
}

// Modulate computes for every timestep and entry the vector (time + pooled + guidance) and from it the modulations of
// the held blocks: Image [S, n, 6E] and Text [S, n, 6E] of double blocks, Image [S, n, 3E] of single ones, Head [S, n,
// 2E]; parts in the order of the checkpoint.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32, held dit.Range) *dit.Modulation {
	n, e := p.N, m.cfg.Hidden
	s := len(timesteps) / n
	out := &dit.Modulation{
		Image: make([]engine.Tensor, len(m.spec.Blocks)),
		Text:  make([]engine.Tensor, len(m.spec.Blocks)),
	}
	out.Vector = m.vectors(env, p, timesteps)
	if !m.held.NoHead {
		out.Head = env.Arena.Alloc(engine.F32, s, n, 2*e)
		env.Ops.Linear(out.Head, out.Vector, m.net.Final.Mod, engine.Epilogue{})
	}
	for i := held.Start; i < held.End; i++ {
		m.ModulateBlock(env, out, i)
	}
	return out
}

// ModulateBlock computes the modulations of block i.
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.held.Has(i) {
		return
	}
	linear := func(w *engine.Weight) engine.Tensor {
		y := env.Arena.Alloc(engine.F32, out.Vector.Dim(0), out.Vector.Dim(1), w.N())
		env.Ops.Linear(y, out.Vector, w, engine.Epilogue{})
		return y
	}
	if i < m.cfg.Depth {
		out.Image[i], out.Text[i] = linear(m.net.Double[i].Img.Mod), linear(m.net.Double[i].Txt.Mod)
		return
	}
	out.Image[i] = linear(m.net.Single[i-m.cfg.Depth].Mod)
}

// vectors returns SiLU(time + pooled + guidance), which every modulation layer reads: [S, n, E] in the arena.
func (m *Model) vectors(env dit.Env, p *dit.Prepared, timesteps []float32) engine.Tensor {
	t := make([]float32, len(timesteps))
	for i, v := range timesteps {
		t[i] = v * float32(m.cfg.TimeFactor)
	}
	s := len(t) / p.N
	vec := env.Arena.Alloc(engine.F32, s, p.N, m.cfg.Hidden)
	mark := env.Arena.Mark()
	f := layers.Upload(env, layers.TimestepFeatures(t, features), s, p.N, features)
	layers.MLP(env, vec, f, m.net.Time.In, m.net.Time.Out, engine.SiLU)
	env.Arena.Release(mark)
	env.Ops.Add(vec, vec, p.Vector.Unsqueeze(0))
	env.Ops.Activate(vec, vec, engine.SiLU)
	return vec
}

// Embed projects the latent's tokens and copies the text rows.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	layers.Entries(env, s.TextRows(), s.P.Text.Slice(1, s.Rows.Text.Start, s.Rows.Text.End))
	if s.Rows.Image.Len() > 0 {
		env.Ops.Linear(s.ImageRows(), x, m.net.ImgIn, engine.Epilogue{})
	}
}

// Head normalises, modulates by (shift, scale) and projects the image rows.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	layers.ModulatedHead(env, out, s.ImageRows(), s.M.Head.Index(0, s.Step), m.net.Final.Linear, eps)
}
