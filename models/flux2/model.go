package flux2

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

const (
	eps      = 1e-6 // of all norms
	features = 256  // sinusoidal features of a timestep
	factor   = 1000 // of timesteps and guidance
)

// Model is a FLUX.2 model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text, the references and the guidance.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	if err := layers.CheckEntries(spec, entries); err != nil {
		return nil, err
	}
	p := &dit.Prepared{N: len(entries), Lt: spec.JointTokens(&entries[0]), Grid: grid, Entries: entries}
	at := m.positions(&entries[0], grid)
	p.RoPE = layers.PositionRotation(m.cfg.Axes, m.cfg.Theta, len(at), func(row int) [4]int { return at[row] }).Upload(env)
	if m.Net.Guidance != nil {
		p.Vector = layers.Guidance(env, entries, factor, m.Net.Guidance.In, m.Net.Guidance.Out)
	}
	if m.Held.NoEmbed {
		return p, nil
	}
	layers.EmbedJoint(env, spec, p, m.Net.TxtIn, m.Net.ImgIn, nil)
	return p, nil
}

// Modulate computes the modulations of all blocks: Vector [S, N, 15E] has those of image and text in double blocks (6E
// each) and of single blocks (3E), Head [S, N, 2E] is (shift, scale). N is n; where references are modulated as at
// timestep 0, it is 2n, and the second half of the rows is for them.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	s, e := len(timesteps)/p.N, m.cfg.Hidden
	t, n := layers.Timesteps(timesteps, p.N, factor, zero(&p.Entries[0]))
	out := dit.NewModulation(m.Spec())
	if !m.Held.NoHead {
		out.Head = env.Arena.Alloc(engine.F32, s, n, 2*e)
	}
	out.Vector = env.Arena.Alloc(engine.F32, s, n, 15*e)
	mark := env.Arena.Mark()
	vec := env.Arena.Alloc(engine.F32, s, n, e)
	f := layers.Upload(env, layers.TimestepFeatures(t, features), s, n, features)
	layers.MLP(env, vec, f, m.Net.Time.In, m.Net.Time.Out, engine.SiLU)
	for at := 0; at < n && m.Net.Guidance != nil; at += p.N {
		rows := vec.Slice(1, at, at+p.N)
		env.Ops.Add(rows, rows, p.Vector.Unsqueeze(0))
	}
	env.Ops.Activate(vec, vec, engine.SiLU)
	at := 0
	for _, w := range []*engine.Weight{m.Net.ImageMod, m.Net.TextMod, m.Net.SingleMod} {
		env.Ops.Linear(out.Vector.Slice(2, at, at+w.N()), vec, w, engine.Epilogue{})
		at += w.N()
	}
	if !m.Held.NoHead {
		env.Ops.Linear(out.Head, vec, m.Net.FinalMod, engine.Epilogue{})
	}
	env.Arena.Release(mark)
	return out
}

// ModulateBlock picks the modulations of block i.
func (m *Model) ModulateBlock(_ dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	e := m.cfg.Hidden
	if i < m.cfg.Depth {
		out.Image[i], out.Text[i] = out.Vector.Slice(2, 0, 6*e), out.Vector.Slice(2, 6*e, 12*e)
		return
	}
	out.Image[i] = out.Vector.Slice(2, 12*e, 15*e)
}

// Embed projects the latent's tokens and copies the text rows.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	layers.EmbedJointRows(env, s, x, m.Net.ImgIn)
}

// Head normalises, modulates by (shift, scale) and projects the image rows.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	mod := s.M.Head.Index(0, s.Step).Slice(0, 0, s.P.N)
	layers.ModulatedHead(env, out, s.ImageRows(), mod, m.Net.Out, eps)
}
