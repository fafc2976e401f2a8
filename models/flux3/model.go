package flux3

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

const (
	eps    = 1e-6 // of all norms
	factor = 1000 // of timesteps
)

// Model is a FLUX.3 model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text and the references. Unless their modulations depend on the step (in a flow map), it also runs
// their mode blocks.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	p.RoPE = layers.UploadRotation(env, p.Lt+grid.Tokens(), spec.HeadDim/2, func() layers.Rotation {
		at := m.halves(&entries[0], grid)
		return layers.RotationAt(m.cfg.Axes, m.cfg.Theta, len(at), func(token, axis int) float64 {
			return float64(at[token][axis]) / 2
		})
	})
	if m.Held.NoEmbed {
		return p, nil
	}
	layers.EmbedJoint(env, spec, p, m.Net.TextIn, m.Net.CondIn, nil)
	if m.cfg.FlowMap {
		return p, nil
	}
	mark := env.Arena.Mark()
	mod := m.Modulation(env, 1, family.Conditioning{
		Timesteps: []float32{0}, In: m.Net.Time.In, Out: m.Net.Time.Out,
		Shared: []*engine.Weight{m.Net.EarlyText, m.Net.EarlyCond},
	})
	m.apart(env, p, p.Text, mod.Vector.Index(0, 0), dit.Range{End: p.Lt})
	env.Arena.Release(mark)
	return p, nil
}

// halves returns the position of every token of an entry in half steps: text, references, image.
func (m *Model) halves(e *dit.Entry, g dit.Grid) [][4]int {
	at := layers.Positions(m.Spec(), e, g, layers.Negative, 1, func(k int) [4]int { return [4]int{0, 0, 0, 2 * k} })
	for i := e.Context.Rows; i < len(at); i++ {
		at[i] = [4]int{0, at[i][1], at[i][2], 2 * at[i][0]}
	}
	return at
}

// Modulate computes the modulations of all blocks, which share them. Image [S, n, 3E] is for the timestep, Text
// [S, n, 6E] of joint blocks for timestep 0, of text, then of references. Text of block 0 is that of the mode blocks of
// text and references in a flow map. Head [S, 2n, 2E] is (shift, scale), of which the first n rows are for the
// timestep.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	n, e := p.N, m.cfg.Hidden
	c := family.Conditioning{
		Timesteps: layers.BesideZero(timesteps, factor, n), In: m.Net.Time.In, Out: m.Net.Time.Out, Head: m.Net.FinalMod,
		Shared: []*engine.Weight{m.Net.EarlyImage, m.Net.JointImage, m.Net.JointText, m.Net.JointCond},
	}
	if m.cfg.FlowMap {
		next := make([]float32, len(timesteps))
		for i, t := range timesteps {
			next[i] = factor * target(p.Entries[i%n].Schedule, t)
		}
		w := m.Net.Next
		c.Add = env.Arena.Alloc(engine.F32, len(next)/n, n, e)
		mark := env.Arena.Mark()
		f := layers.Upload(env, layers.TimestepFeatures(next, w.In.K()), len(next)/n, n, w.In.K())
		layers.MLP(env, c.Add, f, w.In, w.Out, engine.SiLU)
		env.Arena.Release(mark)
		if !m.Held.NoEmbed {
			c.Shared = append(c.Shared, m.Net.EarlyText, m.Net.EarlyCond)
		}
	}
	out := m.Modulation(env, 2*n, c)
	now, zero := out.Vector.Slice(1, 0, n), out.Vector.Slice(1, n, 2*n)
	for i := range out.Image {
		switch {
		case !m.Held.Has(i):
		case i < m.cfg.Depth:
			out.Image[i] = now.Slice(2, 0, 3*e)
		default:
			out.Image[i], out.Text[i] = now.Slice(2, 3*e, 6*e), zero.Slice(2, 6*e, 12*e)
		}
	}
	if m.cfg.FlowMap && !m.Held.NoEmbed && m.Held.Has(0) {
		out.Text[0] = zero.Slice(2, 12*e, 18*e)
	}
	return out
}

// target returns the timestep that a step of a schedule from t leads to: the highest one below t, else 0. Thus samplers
// that ask for a prediction between two steps get the end of the step that they are in. It is inferred that ComfyUI
// takes the next one of the list that its sampler got; the authors define nothing else.
func target(schedule []float32, t float32) (next float32) {
	for _, s := range schedule {
		if s < t*(1-1e-5) { // a timestep of the schedule may have gone through a logarithm
			next = max(next, s)
		}
	}
	return next
}

// Embed projects the latent's tokens and copies the rows of text and references. In a flow map it runs the mode blocks
// of these first, as their modulations depend on where the step leads to.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	if !m.cfg.FlowMap || s.Rows.Text.Len() == 0 {
		layers.EmbedRows(env, s, x, m.Net.ImageIn)
		return
	}
	mark, state, p := env.Arena.Mark(), *s, *s.P
	p.Text = layers.Scratch(env, p.Text, p.Text.Shape()...)
	env.Ops.Copy(p.Text, s.P.Text)
	m.apart(env, &p, p.Text, s.M.Text[0].Index(0, s.Step), s.Rows.Text)
	state.P = &p
	layers.EmbedRows(env, &state, x, m.Net.ImageIn)
	env.Arena.Release(mark)
}

// ModulateBlock does nothing: Modulate has done it.
func (m *Model) ModulateBlock(dit.Env, *dit.Modulation, int) {}
