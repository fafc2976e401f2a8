package flux

import (
	"slices"

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
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	p.RoPE = layers.UploadRotation(env, p.Lt+grid.Tokens(), spec.HeadDim/2, func() layers.Rotation {
		return layers.PositionRotation(m.cfg.Axes, m.cfg.Theta, m.positions(&entries[0], grid))
	})
	if m.Net.Vector != nil {
		p.Vector = env.Arena.Alloc(engine.F32, p.N, m.cfg.Hidden)
	}
	if !m.Held.NoEmbed {
		layers.EmbedJoint(env, spec, p, m.Net.TxtIn, m.Net.ImgIn, nil)
		if err := layers.Concat(env, spec, p); err != nil {
			return nil, err
		}
	}
	if m.Net.Vector == nil {
		return p, nil
	}
	mark := env.Arena.Mark()
	layers.MLP(env, p.Vector, layers.Pooled(env, entries, m.cfg.VectorDim), m.Net.Vector.In, m.Net.Vector.Out, engine.SiLU)
	guided := slices.ContainsFunc(entries, func(e dit.Entry) bool { return e.Guidance != nil })
	if guided && m.Net.Guidance != nil {
		g := layers.Guidance(env, entries, float32(m.cfg.TimeFactor), m.Net.Guidance.In, m.Net.Guidance.Out)
		env.Ops.Add(p.Vector, p.Vector, g)
	}
	env.Arena.Release(mark)
	return p, nil
}

// positions returns the position of every token of an entry: text, references, image. ComfyUI 0.8.0 takes any method
// that it does not know for offset, index_timestep_zero too; 0.33.0 fails on that one.
func (m *Model) positions(e *dit.Entry, g dit.Grid) [][4]int {
	method := e.Method
	if method == layers.AtZero {
		method = layers.Offset
	}
	return layers.Positions(m.Spec(), e, g, method, 1, func(int) [4]int { return [4]int{} })
}

// Modulate computes the vector of every timestep and entry (time + pooled + guidance), or all modulations at once as
// Chroma does. From them come Image [S, n, 6E] and Text [S, n, 6E] of double blocks, Image [S, n, 3E] of single ones,
// and Head [S, n, 2E], with parts in the order of the checkpoint.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	if m.Net.All != nil {
		out := dit.NewModulation(m.Spec())
		out.Vector = m.distilled(env, p, timesteps)
		out.Head = m.share(out.Vector, len(m.Spec().Blocks), false)
		return out
	}
	t, n := layers.Timesteps(m.Spec(), p, timesteps, float32(m.cfg.TimeFactor), "")
	return m.Modulation(env, n, family.Conditioning{
		Timesteps: t, In: m.Net.Time.In, Out: m.Net.Time.Out, Add: p.Vector, Head: m.Net.Final.Mod.Linear,
	})
}

func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	linear := func(w *engine.Weight) engine.Tensor { return layers.Modulate(env, out.Vector, w) }
	switch double := i < m.cfg.Depth; {
	case m.Net.All != nil:
		out.Image[i] = m.share(out.Vector, i, false)
		if double {
			out.Text[i] = m.share(out.Vector, i, true)
		}
	case double:
		out.Image[i], out.Text[i] = linear(m.Net.Double[i].Img.Mod.Linear), linear(m.Net.Double[i].Txt.Mod.Linear)
	default:
		out.Image[i] = linear(m.Net.Single[i-m.cfg.Depth].Mod.Linear)
	}
}
