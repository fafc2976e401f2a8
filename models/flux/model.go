package flux

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// eps is the epsilon of all norms of FLUX.
const eps = 1e-6

// Model is a FLUX model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text, the references, and the part of the conditioning vector that does not depend on the
// timestep: pooled text and guidance.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid, _ dit.Range) (*dit.Prepared, error) {
	spec := m.Spec()
	if err := layers.CheckEntries(spec, entries); err != nil {
		return nil, err
	}
	p := &dit.Prepared{N: len(entries), Lt: spec.JointTokens(&entries[0]), Grid: grid, Entries: entries}
	at := m.positions(&entries[0], grid)
	p.RoPE = layers.PositionRotation(m.cfg.Axes, m.cfg.Theta, len(at), func(row int) [4]int { return at[row] }).Upload(env)
	p.Vector = env.Arena.Alloc(engine.F32, p.N, m.cfg.Hidden)
	if !m.Held.NoEmbed {
		layers.EmbedJoint(env, spec, p, m.Net.TxtIn, m.Net.ImgIn, nil)
		if err := layers.Concat(env, spec, p); err != nil {
			return nil, err
		}
	}
	mark := env.Arena.Mark()
	layers.MLP(env, p.Vector, layers.Pooled(env, entries, m.cfg.VectorDim), m.Net.Vector.In, m.Net.Vector.Out, engine.SiLU)
	if m.Net.Guidance != nil {
		m.addGuidance(env, p)
	}
	env.Arena.Release(mark)
	return p, nil
}

// positions lists where every token of an entry sits: text, references, the picture. ComfyUI 0.8.0 takes any method
// that it does not know for offset, index_timestep_zero too; 0.33.0 fails with that one.
func (m *Model) positions(e *dit.Entry, g dit.Grid) [][4]int {
	method := e.Method
	if method == layers.AtZero {
		method = layers.Offset
	}
	return layers.Positions(m.Spec(), e, g, method, 1, func(int) [4]int { return [4]int{} })
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
		layers.MLP(env, g, f, m.Net.Guidance.In, m.Net.Guidance.Out, engine.SiLU)
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
		Image: make([]engine.Tensor, len(m.Spec().Blocks)),
		Text:  make([]engine.Tensor, len(m.Spec().Blocks)),
	}
	out.Vector = m.vectors(env, p, timesteps)
	if !m.Held.NoHead {
		out.Head = env.Arena.Alloc(engine.F32, s, n, 2*e)
		env.Ops.Linear(out.Head, out.Vector, m.Net.Final.Mod, engine.Epilogue{})
	}
	for i := held.Start; i < held.End; i++ {
		m.ModulateBlock(env, out, i)
	}
	return out
}

// ModulateBlock computes the modulations of block i.
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	linear := func(w *engine.Weight) engine.Tensor { return layers.Modulate(env, out.Vector, w) }
	if i < m.cfg.Depth {
		out.Image[i], out.Text[i] = linear(m.Net.Double[i].Img.Mod), linear(m.Net.Double[i].Txt.Mod)
		return
	}
	out.Image[i] = linear(m.Net.Single[i-m.cfg.Depth].Mod)
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
	layers.MLP(env, vec, f, m.Net.Time.In, m.Net.Time.Out, engine.SiLU)
	env.Arena.Release(mark)
	env.Ops.Add(vec, vec, p.Vector.Unsqueeze(0))
	env.Ops.Activate(vec, vec, engine.SiLU)
	return vec
}

// Embed projects the latent's tokens and copies the text rows.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	layers.Entries(env, s.TextRows(), s.P.Text.Slice(1, s.Rows.Text.Start, s.Rows.Text.End))
	layers.EmbedImage(env, s, x, m.Net.ImgIn)
}

// Head normalises, modulates by (shift, scale) and projects the image rows.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	layers.ModulatedHead(env, out, s.ImageRows(), s.M.Head.Index(0, s.Step), m.Net.Final.Linear, eps)
}
