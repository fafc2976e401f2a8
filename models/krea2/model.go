package krea2

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// Model is a Krea 2 model or a part of one. It implements dit.Model.
type Model struct {
	family.Loaded[net]
	cfg Config
}

// Prepare embeds the text and the references.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	spec := m.Spec()
	p, err := layers.Begin(spec, entries, grid)
	if err != nil {
		return nil, err
	}
	p.RoPE = layers.UploadRotation(env, p.Lt+grid.Tokens(), spec.HeadDim/2, func() layers.Rotation {
		return layers.PositionRotation(axes(spec.HeadDim), theta, m.positions(&entries[0], grid))
	})
	if !m.Held.NoEmbed {
		layers.EmbedJoint(env, spec, p, m.Net.TextOut, m.Net.Patch, func(context engine.Tensor) engine.Tensor {
			return m.text(env, context)
		})
	}
	return p, nil
}

// positions returns the position of every token of an entry: text, references, image.
func (m *Model) positions(e *dit.Entry, g dit.Grid) [][4]int {
	return layers.Positions(m.Spec(), e, g, layers.ByIndex, 1, func(int) [4]int { return [4]int{} })
}

// Modulate embeds every timestep and computes what the modulations of all blocks share. Image [S, N, 6E] is
// (scale, shift, gate) of the attention, then of the MLP, Head [S, N, 2E] (scale, shift). The weights of norms are
// folded into the scales that follow them. N is n. Where references are modulated as at timestep 0, N is 2n, and the
// second half of the rows is for them.
func (m *Model) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	t, n := layers.Timesteps(m.Spec(), p, timesteps, factor, p.Entries[0].Method)
	out := m.Modulation(env, n, family.Conditioning{
		Timesteps: t, In: m.Net.TimeIn, Out: m.Net.TimeOut, Act: engine.GELUTanh,
		Table: m.Net.Table, Shared: []*engine.Weight{m.Net.TimeMod},
	})
	if !out.Head.IsZero() {
		layers.WeighScale(env, out.Head.Slice(2, 0, m.cfg.Hidden), m.Net.FinalNorm)
	}
	return out
}

// ModulateBlock adds the table of block i to what all blocks share.
func (m *Model) ModulateBlock(env dit.Env, out *dit.Modulation, i int) {
	if !m.Held.Has(i) {
		return
	}
	w, e := &m.Net.Blocks[i], m.cfg.Hidden
	out.Image[i] = env.Arena.Alloc(engine.F32, out.Vector.Shape()...)
	env.Ops.Add(out.Image[i], out.Vector, w.Table.Unsqueeze(0).Unsqueeze(0))
	layers.WeighScale(env, out.Image[i].Slice(2, 0, e), w.Norm1)
	layers.WeighScale(env, out.Image[i].Slice(2, 3*e, 4*e), w.Norm2)
}

// Head normalizes the image rows, modulates them by (scale, shift) and projects them.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	x := s.ImageRows()
	if x.Dim(1) == 0 {
		return
	}
	mark := env.Arena.Mark()
	h := layers.Scratch(env, x, x.Shape()...)
	mod, e := s.M.Head.Index(0, s.Step).Slice(0, 0, s.P.N), m.cfg.Hidden
	layers.ScaledRMS(env, h, x, layers.Chunk(mod, e, 0), layers.Chunk(mod, e, 1), eps)
	env.Ops.Linear(out, h, m.Net.Out, engine.Epilogue{})
	env.Arena.Release(mark)
}
